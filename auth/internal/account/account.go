// Package account holds the flows of the auth daemon: sign up, sign in, refresh, verify, recover,
// change, sign out, and what an administrator does. Each is one business transaction in as few round
// trips as it allows, and refuses with a Refusal whose code is stable.
//
// It knows no HTTP and no SQL text, renders and sends nothing (mails and SMS go into the outbox), and does
// not check redirects: what a RequestInfo carries has been checked. Known and unknown addresses take the same
// statements, one hash where there is one, and one commit, unless docs/threat-model.md names the answer that differs.
package account

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Options are what the flows work with.
type Options struct {
	DB        *store.DB
	Keys      *token.Live
	Refresh   *token.RefreshCodec
	Root      *secret.Root
	Passwords *password.Workers
	// Wake is called after a message was committed to the outbox; nil: not at all.
	Wake func()
	// SignedIn is called with the amr method of each session that was opened; nil: not at all.
	SignedIn func(method string)
	// Unsent is called, with channel and reason, for each message that no configured sender can send; nil: no call.
	Unsent func(channel, reason string)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Log gets what is not part of an answer; nil: discarded.
	Log *slog.Logger
}

// Accounts has the entry points of all flows. Its methods may be called from any goroutine.
type Accounts struct {
	core core
	live atomic.Pointer[Settings] // replaced as a whole, never changed
}

// New returns the flows over the given database, keys and workers.
func New(o Options, s Settings) *Accounts {
	a := &Accounts{core: core{
		db: o.DB, keys: o.Keys, codec: o.Refresh, root: o.Root, passwords: hashing{o.Passwords},
		wake: o.Wake, signedIn: o.SignedIn, unsent: o.Unsent,
		clock: o.Now, fakeClock: o.Now != nil, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
	}}
	if a.core.wake == nil {
		a.core.wake = func() {}
	}
	if a.core.unsent == nil {
		a.core.unsent = func(string, string) {}
	}
	if a.core.clock == nil {
		a.core.clock = time.Now
	}
	a.Apply(s)
	return a
}

// Apply puts other settings in force. A call under way keeps those it began with.
func (a *Accounts) Apply(s Settings) { a.live.Store(&s) }

// RequestInfo describes the request: where it comes from, and what it asks for besides its body.
type RequestInfo struct {
	IP, UserAgent string
	// RedirectTo is where a link finally leads; it has been checked.
	RedirectTo string
	// BaseURL is the beginning of links; "" is API_EXTERNAL_URL.
	BaseURL string
	// Aud is the audience that the request works in; "" is JWT_AUD.
	Aud string
	// TrustedIP is IP if it comes from a trusted header, else "".
	TrustedIP string
	// Network is what limits count the client under: an IPv4 address, an IPv6 /64, or whatever else the trusted header
	// identifies clients by; "" without such a header.
	Network string
	// AcceptLanguage is the user's header, not read yet; "" for requests of administrators.
	AcceptLanguage string
	// Admin: the request came with an administrator's token, though it needs none.
	Admin bool
}

// Challenge is the client's half of PKCE; empty: none.
type Challenge struct{ Challenge, Method string }

// Grant is a session that was opened or refreshed.
type Grant struct {
	AccessToken, RefreshToken string
	ExpiresAt                 time.Time
	ExpiresIn                 int // seconds
	User                      store.User
	Session                   uuid.UUID
	// Type is what was verified, after a verification by mail or SMS.
	Type string
	// Weak: the password was right and would be refused today.
	Weak *password.Weak
	// ProviderToken and ProviderRefreshToken are the external provider's own, for the application to call it.
	ProviderToken, ProviderRefreshToken string
}

// mustJSON returns v as JSON text. v consists of strings, bools and maps of them, or of JSON out of PostgreSQL.
func mustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func ptr[T any](v T) *T { return &v }

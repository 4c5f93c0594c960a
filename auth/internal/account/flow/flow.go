// Package flow holds what the flows of accounts (sign-up, sign-in, verification and the others) share: the settings,
// the request and the principal who sent it, what follows a commit, the messages and what limits them, the counting of
// wrong guesses, grants, hooks and metadata.
package flow

import (
	"cmp"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Flow is the state of one request: the settings and the time that the request began with, and the request itself. Its
// methods access the database, fill in audit rows and carry out follow-ups. They contain no rules: the operations that
// have a Flow, and the functions that take one, decide what is allowed.
type Flow struct {
	Core     *Core
	Settings *Settings
	Req      RequestInfo
	Now      time.Time
}

// Begin returns the Flow of a request. It loads the settings once, so that the whole request sees one version of them.
func (k *Core) Begin(req RequestInfo) *Flow {
	return &Flow{Core: k, Settings: k.live.Load(), Req: req, Now: k.now()}
}

// Tick sets the flow's time to the present. It is called after a wait for the database or for a password hash.
func (f *Flow) Tick() { f.Now = f.Core.now() }

// Aud returns the audience of the request: the audience that the request names, or the default.
func (f *Flow) Aud() string { return cmp.Or(f.Req.Aud, f.Settings.Audience) }

// LimitKey returns the key of a rate limit's bucket: a MAC of parts, from which an address among them cannot be read
// back.
func (f *Flow) LimitKey(parts ...string) []byte { return f.Core.Root.MAC(secret.Limits, parts...)[:16] }

// Audit returns an audit row about an action of the request. pairs are the row's traits, as alternating names and
// values.
func (f *Flow) Audit(action store.Action, actor, session uuid.UUID, pairs ...string) store.Audit {
	return store.Audit{At: f.Now, Action: action, Actor: actor, Session: session, IP: f.Req.IP,
		Traits: Traits(pairs...)}
}

// AuditSeldom adds an audit row, at most once a minute for each name and subject, so that guesses cannot fill the log.
func (f *Flow) AuditSeldom(b *Batch, name, subject string, row store.Audit) {
	b.AuditSeldom(store.NewInterval(f.LimitKey(name, subject), time.Minute), row)
}

// Seal returns a message for the outbox, whose payload is encrypted with the root key.
func (f *Flow) Seal(channel, kind string, payload any, expires time.Time) store.NewMessage {
	m := store.NewMessage{ID: uuid.New(), Channel: channel, Kind: kind, At: f.Now, ExpiresAt: expires}
	m.Payload = f.Core.Root.Seal(secret.Outbox, MustJSON(payload), m.ID[:])
	return m
}

// RequestInfo describes the HTTP request: where it comes from, and what it asks for in its headers and query.
type RequestInfo struct {
	IP, UserAgent string
	// RedirectTo is where a link leads in the end. It has been checked against the allowed URLs.
	RedirectTo string
	// BaseURL is the beginning of the links in mails; "" stands for API_EXTERNAL_URL.
	BaseURL string
	// Aud is the audience that the request works in; "" stands for the default, JWT_AUD.
	Aud string
	// TrustedIP is the client's address if a trusted header carries it, else "".
	TrustedIP string
	// Network identifies the client for limits. It is an IPv4 address, an IPv6 /64, or the value of the trusted header
	// that identifies clients; "" if the client is not identified.
	Network string
	// AcceptLanguage is the header Accept-Language of the user's request, not parsed; "" for requests of
	// administrators.
	AcceptLanguage string
	// Admin is set if a request that needs no token came with an administrator's token.
	Admin bool
}

// Traits encodes the traits of an audit row as a JSON object; pairs are alternating names and values.
func Traits(pairs ...string) []byte {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	if len(m) == 0 {
		return nil
	}
	return MustJSON(m)
}

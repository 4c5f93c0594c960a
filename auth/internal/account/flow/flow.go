// Package flow holds what the flows of accounts share: the core that each call begins from, the settings, the request
// and its principal, what follows a commit, the messages and what limits them, the counting of wrong guesses, grants,
// hooks and metadata.
package flow

import (
	"cmp"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Flow is one call of an entry point: the settings and the time that the call began with, and the request. Its methods
// access the database, fill in audit rows and carry out follow-ups. It has no rules: the operations that have a flow,
// and the functions that take one, decide what is allowed.
type Flow struct {
	Core     *Core
	Settings *Settings
	Req      RequestInfo
	Now      time.Time
}

// Begin returns the flow of a call. It loads the settings once, so that the whole call sees one version of them.
func (k *Core) Begin(req RequestInfo) *Flow {
	return &Flow{Core: k, Settings: k.live.Load(), Req: req, Now: k.now()}
}

// Tick moves the flow's time to the present, after a wait for the database or a hash.
func (f *Flow) Tick() { f.Now = f.Core.now() }

// Aud returns the audience that the request works in.
func (f *Flow) Aud() string { return cmp.Or(f.Req.Aud, f.Settings.Audience) }

// LimitKey returns the key of a bucket. An address among the parts cannot be read back from it.
func (f *Flow) LimitKey(parts ...string) []byte { return f.Core.Root.MAC(secret.Limits, parts...)[:16] }

// Audit returns an audit row about an action of the request. pairs are the row's traits, name and value in turns.
func (f *Flow) Audit(action store.Action, actor, session uuid.UUID, pairs ...string) store.Audit {
	return store.Audit{At: f.Now, Action: action, Actor: actor, Session: session, IP: f.Req.IP,
		Traits: Traits(pairs...)}
}

// AuditSeldom adds a row, at most one a minute for each name and subject, so that guesses cannot fill the log.
func (f *Flow) AuditSeldom(b *Batch, name, subject string, row store.Audit) {
	b.AuditSeldom(store.NewInterval(f.LimitKey(name, subject), time.Minute), row)
}

// Seal returns a message for the outbox with its payload sealed.
func (f *Flow) Seal(channel, kind string, payload any, expires time.Time) store.NewMessage {
	m := store.NewMessage{ID: uuid.New(), Channel: channel, Kind: kind, At: f.Now, ExpiresAt: expires}
	m.Payload = f.Core.Root.Seal(secret.Outbox, MustJSON(payload), m.ID[:])
	return m
}

// RequestInfo describes the request: where it comes from, and what it asks for apart from the body.
type RequestInfo struct {
	IP, UserAgent string
	// RedirectTo is where a link finally leads; it has been checked.
	RedirectTo string
	// BaseURL is the beginning of links; "" is API_EXTERNAL_URL.
	BaseURL string
	// Aud is the audience that the request works in; "" is JWT_AUD.
	Aud string
	// TrustedIP is IP if a trusted header has it, else "".
	TrustedIP string
	// Network is the key of limits by client: an IPv4 address, an IPv6 /64, or the value by which a trusted header
	// identifies clients; "" without such a header.
	Network string
	// AcceptLanguage is the user's header Accept-Language, not parsed; "" for requests of administrators.
	AcceptLanguage string
	// Admin: the request, which needs no token, came with an administrator's token.
	Admin bool
}

// Traits returns the traits of an audit row; pairs are name and value in turns.
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

// Package account holds the flows of the auth daemon: sign up, sign in, refresh, verify, recover,
// change, sign out, and what an administrator does. Each is one business transaction in as few round
// trips as it allows, and refuses with a Refusal whose code is stable.
//
// It knows no HTTP and no SQL text, renders and sends nothing (mails and SMS go into the outbox), and does
// not check redirects: what a RequestInfo carries has been checked. Known and unknown addresses take the same
// statements, one hash where there is one, and one commit, unless docs/threat-model.md names the answer that differs.
package account

// Accounts has the entry points of the flows of addresses, passwords and sessions. Its methods may be called from any
// goroutine.
type Accounts struct{ core *Core }

// New returns the flows over what they share.
func New(k *Core) *Accounts { return &Accounts{k} }

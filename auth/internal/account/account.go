// Package account holds the flows of addresses, passwords and sessions: sign up, sign in, refresh, verify, recover,
// change, sign out, and invitations and links by an administrator, which are steps of a sign-up. The packages oauth,
// factor, passkey and admin below it hold the flows of external providers, second factors, passkeys and administrators.
// All five share package flow and do not import each other.
//
// Each flow is one business transaction in as few round trips as possible, and refuses with a refusal.Refusal, whose
// code is stable. No flow knows HTTP or SQL, renders or sends messages (mails and SMS go into the outbox), or checks
// redirects: a flow.RequestInfo was checked before. Known and unknown addresses take the same statements, the same
// number of hashes and one commit, unless docs/threat-model.md names the answer that differs.
package account

import (
	"gatehouse/auth/internal/account/flow"
)

// Accounts has the entry points of the flows of addresses, passwords and sessions. Its methods may be called from any
// goroutine.
type Accounts struct{ core *flow.Core }

// New returns the flows over what they share.
func New(k *flow.Core) *Accounts { return &Accounts{k} }

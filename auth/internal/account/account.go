// Package account holds the flows of addresses, passwords and sessions: sign-up, sign-in, refresh, verification,
// recovery, changes of the user's account, and sign-out. It also holds the invitations and links that an administrator
// creates, since both begin a sign-up. The packages oauth, factor, passkey and admin below it hold the flows of
// external providers, second factors, passkeys and administrators. All five share package flow and do not import each
// other.
//
// Each flow runs one business transaction in as few round trips as possible. To refuse a request, it returns a
// refusal.Refusal, whose code is stable. No flow knows HTTP or SQL, renders or sends messages (mails and SMS go into
// the outbox), or checks where links may lead: a flow.RequestInfo has been checked before. So that answers do not
// reveal which addresses have accounts, known and unknown addresses take the same statements, the same number of
// password hashes and one commit, unless docs/threat-model.md names the answer that differs.
package account

import (
	"gatehouse/auth/internal/account/flow"
)

// Accounts has the entry points of the flows of addresses, passwords and sessions. Its methods may be called from any
// goroutine.
type Accounts struct{ core *flow.Core }

// New returns the entry points of the flows in this package. They use the database, the keys and the settings in k.
func New(k *flow.Core) *Accounts { return &Accounts{k} }

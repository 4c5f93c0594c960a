// Package account holds the flows of addresses, passwords and sessions: sign up, sign in, refresh, verify, recover,
// change, sign out, and invitations and links by an administrator, which are steps of a sign-up. Its neighbours below
// are package oauth for external providers, package factor for second factors and package admin for administrators.
// The four share package flow and know nothing of each other.
//
// Each flow is one business transaction in as few round trips as it allows, and refuses with a refusal.Refusal whose
// code is stable. None knows HTTP or SQL text, renders or sends anything (mails and SMS go into the outbox), or checks
// redirects: what a flow.RequestInfo carries has been checked. Known and unknown addresses take the same statements,
// one hash where there is one, and one commit, unless docs/threat-model.md names the answer that differs.
package account

import (
	"gatehouse/auth/internal/account/flow"
)

// Accounts has the entry points of the flows of addresses, passwords and sessions. Its methods may be called from any
// goroutine.
type Accounts struct{ core *flow.Core }

// New returns the flows over what they share.
func New(k *flow.Core) *Accounts { return &Accounts{k} }

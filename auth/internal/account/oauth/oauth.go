// Package oauth holds the flows of external providers: the redirect to a provider and the callback, the choice of the
// account for an identity, linking and unlinking, ID tokens, and the exchange of a PKCE code for a session.
package oauth

import (
	"gatehouse/auth/internal/account/flow"
)

// Identities has the entry points of the flows of external providers. Its methods may be called from any goroutine.
type Identities struct{ core *flow.Core }

// New returns the flows over what they share.
func New(k *flow.Core) *Identities { return &Identities{k} }

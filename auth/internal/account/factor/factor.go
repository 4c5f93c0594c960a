// Package factor holds the flows of second factors: enrol, challenge, verify and remove, by the user or an
// administrator.
package factor

import (
	"gatehouse/auth/internal/account/flow"
)

// Factors has the entry points of the flows of second factors. Its methods may be called from any goroutine.
type Factors struct{ core *flow.Core }

// New returns the flows over what they share.
func New(k *flow.Core) *Factors { return &Factors{k} }

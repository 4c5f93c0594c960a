package account

// Identities has the entry points of the flows of external providers. Its methods may be called from any goroutine.
type Identities struct{ core *Core }

// NewIdentities returns the flows over what they share.
func NewIdentities(k *Core) *Identities { return &Identities{k} }

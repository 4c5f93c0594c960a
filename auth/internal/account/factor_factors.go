package account

// Factors has the entry points of the flows of second factors. Its methods may be called from any goroutine.
type Factors struct{ core *Core }

// NewFactors returns the flows over what they share.
func NewFactors(k *Core) *Factors { return &Factors{k} }

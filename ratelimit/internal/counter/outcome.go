package counter

// Outcome is what became of the hits of one request.
type Outcome struct {
	failed int
	err    error // of the first that failed
}

func (o *Outcome) Fail(h *Hit, err error) {
	if h.Err = err; o.err == nil {
		o.err = err
	}
	o.failed++
}

// Of is what Add returns: hits that have failed leave the others theirs.
func (o *Outcome) Of(req *Request) error {
	switch o.failed {
	case 0:
		return nil
	case len(req.Hits):
		return o.err
	}
	return ErrPartial
}

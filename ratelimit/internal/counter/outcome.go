package counter

// outcome is what became of the hits of one request.
type outcome struct {
	failed int
	err    error // of the first that failed
}

func (o *outcome) fail(h *Hit, err error) {
	if h.Err = err; o.err == nil {
		o.err = err
	}
	o.failed++
}

// of is what Add returns: hits that have failed leave the others theirs.
func (o *outcome) of(req *Request) error {
	switch o.failed {
	case 0:
		return nil
	case len(req.Hits):
		return o.err
	}
	return ErrPartial
}

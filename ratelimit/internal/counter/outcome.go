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

// Whole is the error of a request that fails as a whole, of what Add has returned: the first hit's without an answer.
func Whole(req *Request, err error) error {
	if err == ErrPartial {
		for i := range req.Hits {
			if req.Hits[i].Err != nil {
				return req.Hits[i].Err
			}
		}
	}
	return err
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

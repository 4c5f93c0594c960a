package counter

// Outcome collects the failures among the hits of one request.
type Outcome struct {
	failed int
	err    error // of the first failed hit
}

func (o *Outcome) Fail(h *Hit, err error) {
	if h.Err = err; o.err == nil {
		o.err = err
	}
	o.failed++
}

// Whole returns the error of a request that fails as a whole, given the error that Add returned: for ErrPartial, the
// error of the first hit without an answer.
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

// Of returns the error of Add. Failed hits leave the answers of the others valid.
func (o *Outcome) Of(req *Request) error {
	switch o.failed {
	case 0:
		return nil
	case len(req.Hits):
		return o.err
	}
	return ErrPartial
}

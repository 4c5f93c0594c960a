package counter

// Outcome collects the failures of single hits while the parts of one request are carried out in several places.
type Outcome struct {
	failed int
	err    error // the error of the first hit that failed
}

// Fail records that the hit h has failed with err.
func (o *Outcome) Fail(h *Hit, err error) {
	if h.Err = err; o.err == nil {
		o.err = err
	}
	o.failed++
}

// Whole returns the error of a request that is valid only as a whole, given the error that Add returned for it. For
// ErrPartial, this is the error of the first hit without an answer.
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

// Of returns the error that Add returns for the request: nil if no hit has failed, the first error if all have, and
// otherwise ErrPartial, with which the answers of the other hits are valid.
func (o *Outcome) Of(req *Request) error {
	switch o.failed {
	case 0:
		return nil
	case len(req.Hits):
		return o.err
	}
	return ErrPartial
}

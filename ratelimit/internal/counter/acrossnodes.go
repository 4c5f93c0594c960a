package counter

import "context"

// AddAcrossNodes carries out a request under Stop whose counters no one script reaches: it reads all, and
// writes if none is over; each write checks its own limit again. What another request counts in
// between can make one write go over while the others have happened: that one then is OVER_LIMIT and
// not written, and the others are given back; others see them counted
// until then. add carries out hits wherever they belong.
func AddAcrossNodes(ctx context.Context, req *Request, add func(context.Context, *Request) error) error {
	looks := Request{Hits: make([]Hit, len(req.Hits)), Now: req.Now}
	for i := range req.Hits {
		looks.Hits[i] = req.Hits[i]
		looks.Hits[i].N, looks.Hits[i].Refund = 0, false
	}
	if err := add(ctx, &looks); err != nil {
		return err
	}
	if judgeStop(req.Hits, looks.Hits) {
		return nil
	}
	writes := Request{Now: req.Now, Stop: StopEach}
	var at []int
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.N > 0 && !h.Over(h.After) {
			writes.Hits, at = append(writes.Hits, *h), append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	if err := add(ctx, &writes); err != nil {
		return err
	}
	held := false
	for i, at := range at {
		h := &req.Hits[at]
		h.After = writes.Hits[i].After
		held = held || h.Over(h.After) && !h.Shadow
	}
	if held {
		giveBack(ctx, req, at, add)
	}
	return nil
}

// giveBack undoes the hits at those places that were written though another one went over. It does so
// within the caller's time: what cannot be given back stays counted, and the answer is the same.
func giveBack(ctx context.Context, req *Request, written []int, add func(context.Context, *Request) error) {
	back := Request{Now: req.Now}
	var at []int
	for _, i := range written {
		if h := req.Hits[i]; !h.Refund && !h.Over(h.After) {
			h.Refund = true
			back.Hits, at = append(back.Hits, h), append(at, i)
		}
	}
	if len(at) == 0 || add(ctx, &back) != nil {
		return
	}
	for i, at := range at {
		h := &req.Hits[at]
		h.After, h.Spared = back.Hits[i].After, true
		for j := range back.Hits[i+1:] { // the same key later in this request: without that, too
			if later := &back.Hits[i+1+j]; string(later.Key) == string(h.Key) {
				h.After = later.After
			}
		}
	}
}

// judgeStop works out what becomes of each hit when the counters stand where looks found them. held:
// one that is not in shadow mode would go over, so that nothing is written.
func judgeStop(hits, looks []Hit) (held bool) {
	would := make([]int64, len(hits)) // the total after each hit, without those that go over
	for i := range hits {
		h := &hits[i]
		before := looks[i].After
		for j := i - 1; j >= 0; j-- { // the same key earlier in this request
			if string(hits[j].Key) == string(h.Key) {
				before = would[j]
				break
			}
		}
		h.After, h.Spared = h.Apply(before), false
		if would[i] = h.After; h.Over(h.After) {
			would[i] = before
			held = held || !h.Shadow
		}
	}
	for i := range hits {
		if h := &hits[i]; held && !h.Over(h.After) {
			h.After, h.Spared = looks[i].After, true
		}
	}
	return held
}

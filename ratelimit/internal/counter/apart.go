package counter

import "context"

// addApart carries out a request under Stop whose counters no one script reaches: it reads all, and
// writes if none is over; each write minds its own limit once more. What another request counts in
// between can make one write go over while the others have happened: that one then is OVER_LIMIT and
// not written, the others stay written (RULINGS "Stop-increment option"). add carries out hits wherever
// they belong.
func addApart(ctx context.Context, req *Request, add func(context.Context, *Request) error) error {
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
	writes := Request{Now: req.Now, Stop: true, each: true}
	var at []int
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.N > 0 && !h.over(h.After) {
			writes.Hits, at = append(writes.Hits, *h), append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	if err := add(ctx, &writes); err != nil {
		return err
	}
	for i, at := range at {
		req.Hits[at].After = writes.Hits[i].After
	}
	return nil
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
		h.After, h.Spared = h.apply(before), false
		if would[i] = h.After; h.over(h.After) {
			would[i] = before
			held = held || !h.Shadow
		}
	}
	for i := range hits {
		if h := &hits[i]; held && !h.over(h.After) {
			h.After, h.Spared = looks[i].After, true
		}
	}
	return held
}

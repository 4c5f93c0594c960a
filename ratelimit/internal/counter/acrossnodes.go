package counter

import (
	"cmp"
	"context"
	"slices"
	"unsafe"
)

// AddAcrossNodes carries out a request under Stop whose counters no single script reaches. It reads all counters, and
// writes if no hit is over; each write checks its own limit again. Hits of another request in between can make one
// write go over after others have happened. Then the hit that went over is answered OVER_LIMIT and not written, and the
// other hits are given back; until then other requests see them counted. add carries out hits on the nodes that have
// their keys.
func AddAcrossNodes(ctx context.Context, req *Request, add func(context.Context, *Request) error) error {
	looks := Request{Hits: slices.Clone(req.Hits), Now: req.Now}
	for i := range looks.Hits {
		h := &looks.Hits[i]
		h.BringDown, h.N, h.Refund, h.Err = h.BringsDown(), 0, false, nil
	}
	if err := Whole(&looks, add(ctx, &looks)); err != nil {
		return err
	}
	if JudgeStop(req.Hits, looks.Hits, false) {
		return nil
	}
	writes := Request{Now: req.Now, Stop: StopEach}
	var at []int
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.N > 0 && !h.IsOver() {
			writes.Hits, at = append(writes.Hits, *h), append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	if err := Whole(&writes, add(ctx, &writes)); err != nil {
		return err
	}
	held := false
	for i, at := range at {
		h := &req.Hits[at]
		h.TakeAnswer(&writes.Hits[i])
		held = held || h.IsOver() && !h.Shadow
	}
	if held {
		giveBack(ctx, req, at, add)
	}
	return nil
}

// giveBack undoes the hits at the given indexes, which were written although another hit went over. It does so within
// the caller's time: hits that it cannot give back stay counted, and the answer is the same.
func giveBack(ctx context.Context, req *Request, written []int, add func(context.Context, *Request) error) {
	back := Request{Now: req.Now}
	var at []int
	for _, i := range written {
		if h := req.Hits[i]; !h.Refund && !h.IsOver() {
			h.Refund, h.Undo = true, true
			back.Hits, at = append(back.Hits, h), append(at, i)
		}
	}
	if len(at) == 0 || add(ctx, &back) != nil {
		return
	}
	for i, at := range at {
		h := &req.Hits[at]
		h.TakeAnswer(&back.Hits[i])
		for j := range back.Hits[i+1:] { // the answer of a later hit on the same key excludes both
			if later := &back.Hits[i+1+j]; string(later.Key) == string(h.Key) {
				h.TakeAnswer(later)
			}
		}
		h.Spared = true
	}
}

// fewHits is up to how many hits comparing their keys is cheaper than a map.
const fewHits = 8

// JudgeStop works out the outcome of each hit when the counters stand where looks found them. held reports whether
// nothing is written: a hit that is not in shadow mode would go over, or known is true, because a hit without a counter
// is over. A hit whose look has an Err gets no outcome. Stores call JudgeStop under a lock: of up to fewHits hits, it
// compares each with those before it and allocates nothing; of more, it keeps a map, so that the work stays linear.
func JudgeStop(hits, looks []Hit, known bool) (held bool) {
	held = known
	var latest map[string]*Hit // by key: the latest hit that is not over
	if len(hits) > fewHits {
		latest = make(map[string]*Hit, len(hits))
	}
	for i := range hits {
		h, before := &hits[i], &looks[i]
		if before.Err != nil {
			continue
		}
		earlier := latest[string(h.Key)]
		for j := i - 1; j >= 0 && latest == nil && earlier == nil; j-- {
			if e := &hits[j]; string(e.Key) == string(h.Key) && looks[j].Err == nil && !e.IsOver() {
				earlier = e
			}
		}
		before = cmp.Or(earlier, before)
		if h.Algorithm != FixedWindow {
			h.Judge(&before.State)
		} else {
			h.After, h.Spared = h.AddTo(before.After), false
		}
		if latest != nil && !h.IsOver() {
			latest[unsafe.String(unsafe.SliceData(h.Key), len(h.Key))] = h
		}
		held = held || h.IsOver() && !h.Shadow
	}
	for i := range hits {
		if h, look := &hits[i], &looks[i]; held && look.Err == nil {
			if !h.IsOver() {
				h.After, h.Spared = look.After, true
			}
			h.State = look.State
		}
	}
	return held
}

package counter

import (
	"cmp"
	"context"
	"slices"
	"unsafe"
)

// AddAcrossNodes carries out a request under StopAll whose counters are on several nodes or in several stores, so that
// no single script can decide it. It reads all counters first, and adds the hits only if none of them exceeds its
// limit. Each addition checks its own limit once more (StopEach), since other requests may have added hits in between.
// If one addition is then refused after others have been made, the refused hit is answered as over its limit, and the
// other hits are given back; until then, other requests see them counted.
//
// The function add carries out hits on the nodes or in the stores that have their keys.
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

// giveBack undoes the hits at the given indexes of req, which were counted although another hit went over its limit. It
// uses only the time that the caller has left. Hits that cannot be given back in time stay counted, and the request's
// answer is the same.
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
		for j := range back.Hits[i+1:] { // a later hit on the same key: its answer excludes both
			if later := &back.Hits[i+1+j]; string(later.Key) == string(h.Key) {
				h.TakeAnswer(later)
			}
		}
		h.Spared = true
	}
}

// fewHits is the number of hits up to which comparing their keys with each other is faster than building a map.
const fewHits = 8

// JudgeStop works out the answers of a request's hits under StopAll. looks[i] has the state of hits[i]'s counter before
// the request. held reports that no hit may be counted: because a hit that is not in shadow mode exceeds its limit, or
// because known is true, which says that a hit without a counter exceeds its limit. A hit whose look has an Err gets no
// answer.
//
// Stores call JudgeStop while they hold a lock. For up to fewHits hits, it compares each hit with the hits before it
// and allocates nothing; for more, it uses a map, so that the work grows only linearly.
func JudgeStop(hits, looks []Hit, known bool) (held bool) {
	held = known
	var latest map[string]*Hit // by key: the latest hit that does not exceed its limit
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

package redis

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gatehouse/ratelimit/internal/counter"
)

// Hits on one key share a command unless a script stands between them.
func TestBatch_coalesce(t *testing.T) {
	store := newStubStore(t)
	f := func(want string, requests ...counter.Request) {
		t.Helper()
		b := new(batch)
		for i := range requests {
			requests[i].Now = noon
			c := newCall()
			c.fill(&requests[i], nil, store.hash)
			b.calls = append(b.calls, c)
		}
		b.build(&seenKeys{generation: 10}, 0, func(*call) {})
		got := ""
		for i := range b.ops {
			o := &b.ops[i]
			switch o.kind {
			case opCount:
				got += fmt.Sprintf("%s+%d ", o.key, o.n)
			case opRefund:
				got += fmt.Sprintf("%s-%d ", o.key, o.n)
			case opStop:
				got += fmt.Sprintf("stop(%d) ", len(o.stop.hits))
			}
		}
		if got != want {
			t.Errorf("commands %q, want %q", got, want)
		}
	}
	one := func(hits ...counter.Hit) counter.Request { return counter.Request{Hits: hits} }
	stop := func(hits ...counter.Hit) counter.Request { return counter.Request{Hits: hits, Stop: counter.StopAll} }
	f("a+6 b+2 ", one(h("a", 1), h("b", 2)), one(h("a", 5)))
	f("a+1 ", one(h("a", 0)), one(h("a", 1)), one(h("a", 0)))
	f("a+0 ", one(h("a", 0)), one(h("a", 0)))
	f("a+1 a-1 a+5 b+1 ", one(h("a", 1)), one(refund(h("a", 1))), one(h("a", 2), h("b", 1)), one(h("a", 3)))
	f("a+1 stop(2) a+2 b+7 c+1 ", one(h("a", 1)), stop(h("a", 1), h("b", 1)), one(h("a", 2), h("b", 7), h("c", 1)))
	f("a-1 a-2 stop(1) stop(1) ", one(refund(h("a", 1))), one(refund(h("a", 2))), stop(h("a", 1)), stop(h("a", 1)))
}

func TestBatch_leftCallsAreNotSent(t *testing.T) {
	b := new(batch)
	for range 3 {
		c := newCall()
		c.fill(&counter.Request{Hits: []counter.Hit{h("a", 1)}}, nil, func([]byte) uint64 { return 1 })
		b.calls = append(b.calls, c)
	}
	b.calls[1].claim(left)
	freed := 0
	b.build(&seenKeys{generation: 10}, 0, func(*call) { freed++ })
	if len(b.ops) != 1 || b.ops[0].n != 2 || len(b.calls) != 2 || freed != 1 {
		t.Errorf("%d commands for %d hits of %d calls, %d freed; want 1, 2, 2, 1", len(b.ops), b.ops[0].n, len(b.calls),
			freed)
	}
}

func TestOpIndex(t *testing.T) {
	var x opIndex
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		n := r.IntN(3000)
		x.reset(n)
		model, hashes := map[uint64]int32{}, []uint64(nil)
		for range n {
			hash := r.Uint64N(1000) | 1
			if r.IntN(2) == 0 { // the upper half alone differs
				hash = hash<<32 | 1
			}
			at := x.find(hash, func(op int32) bool { return hashes[op] == hash })
			if *at != model[hash] {
				t.Fatalf("entry %d, want %d", *at, model[hash])
			}
			if *at == 0 {
				hashes = append(hashes, hash)
				*at = int32(len(hashes))
				model[hash] = *at
			}
		}
	}
	// Keys with equal hashes are distinguished.
	x.reset(2)
	*x.find(7, nil) = 1
	second := x.find(7, func(op int32) bool { return op == 1 })
	if *second != 0 {
		t.Error("two keys with one hash share a command")
	}
	*second = 2
	if *x.find(7, func(op int32) bool { return op == 0 }) != 1 ||
		*x.find(7, func(op int32) bool { return op == 1 }) != 2 {
		t.Error("two keys with one hash are mixed up")
	}
}

func TestSeenKeys(t *testing.T) {
	m := seenKeys{generation: 100}
	for i := range uint64(10_000) {
		m.add(i<<1 | 1)
		if !m.has(i<<1|1) || !m.has(1) { // what is needed stays
			t.Fatalf("after %d: not met", i)
		}
		if i > 40 && !m.has((i-40)<<1|1) {
			t.Fatalf("after %d: the one 40 before is forgotten", i)
		}
	}
	if m.has(3) || len(m.young.table)+len(m.old.table) > 600 {
		t.Errorf("not bounded: %d and %d places", len(m.young.table), len(m.old.table))
	}
	m.forget()
	if m.has(1) {
		t.Error("not forgotten")
	}
}

package counter_test

import (
	"context"
	"fmt"
	"testing"

	"gatehouse/ratelimit/internal/counter"
)

// between is stores of which the test knows what others do between two round trips.
type between struct {
	counters map[string]int64
	trips    int
	before   func(trip int)
}

func (b *between) add(_ context.Context, req *counter.Request) error {
	b.before(b.trips)
	b.trips++
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.After = h.AddTo(b.counters[string(h.Key)]); req.Stop != counter.StopEach || !h.Over(h.After) {
			b.counters[string(h.Key)] = h.After
		}
	}
	return nil
}

// Another request takes the last hit between the read and the write: nothing of the refused request stays counted.
func TestAddAcrossNodes_givesBack(t *testing.T) {
	f := func(what string, hits []counter.Hit, taken string, want string) {
		t.Helper()
		b := &between{counters: map[string]int64{"a": 1, "b": 1, "c": 1}}
		b.before = func(trip int) {
			if trip == 1 {
				b.counters[taken]++
			}
		}
		req := counter.Request{Hits: hits, Now: now(), Stop: counter.StopAll}
		if err := counter.AddAcrossNodes(t.Context(), &req, b.add); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("a%d b%d c%d", b.counters["a"], b.counters["b"], b.counters["c"])
		for _, h := range req.Hits {
			got += fmt.Sprintf(" %s:%d", h.Key, h.After)
			if h.Spared {
				got += "-"
			}
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	of := func(key string, n uint64, limited uint64) counter.Hit { return limit(limited, h(key, n)) }
	stale := of("a", 1, 2)
	stale.Err = counter.ErrBusy
	f("an error of an earlier use", []counter.Hit{stale, of("b", 2, 9)}, "none", "a2 b3 c1 a:2 b:3")
	f("nobody comes between", []counter.Hit{of("a", 1, 2), of("b", 2, 9)}, "none", "a2 b3 c1 a:2 b:3")
	f("the first is over", []counter.Hit{of("a", 1, 2), of("b", 2, 9), of("c", 1, 9)}, "a", "a2 b1 c1 a:3 b:1- c:1-")
	f("the last is over", []counter.Hit{of("b", 2, 9), of("a", 1, 2)}, "a", "a2 b1 c1 b:1- a:3")
	f("the same counter twice", []counter.Hit{of("b", 2, 9), of("a", 1, 2), of("b", 3, 9)}, "a",
		"a2 b1 c1 b:1- a:3 b:1-")
	shadow := of("a", 1, 2)
	shadow.Shadow = true
	f("a rule in shadow mode stops nobody", []counter.Hit{shadow, of("b", 2, 9)}, "a", "a2 b3 c1 a:3 b:3")
	refund := of("c", 1, 9)
	refund.Refund = true
	f("a refund stays", []counter.Hit{of("a", 1, 2), refund}, "a", "a2 b1 c0 a:3 c:0")
}

// A hit whose counter was not read gets no outcome, also where nothing is written.
func TestJudgeStop_unread(t *testing.T) {
	for _, known := range []bool{false, true} {
		hits := []counter.Hit{limit(9, h("a", 1)), limit(9, h("b", 1))}
		looks := []counter.Hit{{After: 5, Err: counter.ErrBusy}, {After: 5}}
		if held := counter.JudgeStop(hits, looks, known); held != known {
			t.Errorf("known %t: held %t", known, held)
		}
		if hits[0].After != 0 || hits[0].Spared || hits[1].Spared != known {
			t.Errorf("known %t: %+v", known, hits)
		}
	}
}

// Each hit is judged after the earlier ones on its key that are not over, however many hits there are. Few need no
// memory.
func TestJudgeStop_sameKeys(t *testing.T) {
	for _, n := range []int{1, 3, 8, 9, 20, 60} {
		hits, looks := make([]counter.Hit, n), make([]counter.Hit, n)
		keys := max(1, n/3)
		for i := range hits {
			key := i % keys
			hits[i], looks[i].After = limit(7, h(fmt.Sprint("key", key), 2)), 4
			hits[i].Shadow = true
			if i == 2*keys { // gets no outcome
				looks[i].Err = counter.ErrBusy
			}
		}
		allocs := testing.AllocsPerRun(10, func() { counter.JudgeStop(hits, looks, false) })
		if n <= 8 && allocs != 0 {
			t.Errorf("%d hits: %v allocations", n, allocs)
		}
		for i := range hits {
			want := int64(6)
			if i >= keys {
				want = 8 // over, so that the third hit on the key stands after the first too
			}
			if looks[i].Err != nil {
				want = 0
			}
			if got := hits[i].After; got != want {
				t.Errorf("hit %d of %d: %d, want %d", i, n, got, want)
			}
		}
	}
}

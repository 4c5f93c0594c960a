// Package countertest tests what every counter.Store must do, and has helpers that the tests of several stores share.
// Only tests import it.
package countertest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/testdb"
)

// Opened returns the store that open opens, and closes it when t ends. No goroutine and no connection may then be left.
func Opened[S interface {
	Close()
	ActiveConns() int64
}](t testing.TB, open func() (S, error)) S {
	t.Helper()
	before := goleak.IgnoreCurrent()
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		goleak.VerifyNone(t, before, testdb.IgnoreServers())
		if n := s.ActiveConns(); n != 0 {
			t.Errorf("%d connections are open after Close", n)
		}
	})
	return s
}

// Run opens a store by open, and tests that it does what every Store must do.
func Run(t *testing.T, open func(t *testing.T) counter.Store) {
	s := open(t)
	t.Run("hits", func(t *testing.T) { testHits(t, s) })
	t.Run("stop", func(t *testing.T) { testStop(t, s) })
	t.Run("concurrent", func(t *testing.T) { Concurrent(t, s) })
	t.Run("concurrent with refunds", func(t *testing.T) { testConcurrentRefunds(t, s) })
}

// Noon is the time in the examples, in Unix seconds. A window of a second starts then.
const Noon = 1_700_000_000

// Patience is the time-out of stores in tests that do not test time-outs. It is long enough for a busy machine.
const Patience = 20 * time.Second

// Add carries out one hit at the time now, in Unix seconds, and returns the counter's total after it.
func Add(t *testing.T, s counter.Store, now int64, h counter.Hit) int64 {
	t.Helper()
	req := counter.Request{Hits: []counter.Hit{h}, Now: now}
	if err := s.Add(t.Context(), &req); err != nil {
		t.Fatalf("Add %s: %v", h.Key, err)
	}
	return req.Hits[0].After
}

// Peek returns the total of the fixed window with the given key.
func Peek(ctx context.Context, s counter.Store, key string) (int64, error) {
	h := counter.Hit{Key: []byte(key), Meter: counter.Meter{Window: 60}}
	err := s.Peek(ctx, &h)
	return h.After, err
}

// Now returns the real time in Unix seconds, by which a store in another process drops keys.
func Now() int64 { return time.Now().Unix() }

// Hit returns n hits on a fixed window of a minute that does not end during the test.
func Hit(key string, n uint64) counter.Hit {
	return counter.Hit{Key: []byte(key), N: n, Meter: counter.Meter{Limit: 10, Window: 60}, End: Now() + 3600}
}

// Refund returns h, changed to a refund.
func Refund(h counter.Hit) counter.Hit { h.Refund = true; return h }

// Limit returns h with the limit n.
func Limit(n uint64, h counter.Hit) counter.Hit { h.Limit = n; return h }

// Shadow returns h, changed to a hit of a limit in shadow mode.
func Shadow(h counter.Hit) counter.Hit { h.Shadow = true; return h }

// Result is a store's answer to one hit on a fixed window.
type Result struct {
	After  int64
	Spared bool
}

// Spared returns the Result of a hit that was not counted because of another hit; n is the total without it.
func Spared(n int64) Result { return Result{n, true} }

// The functions above under short names, for use in tables.
var now, h, limit, refund, shadow, spared = Now, Hit, Limit, Refund, Shadow, Spared

type result = Result

func testHits(t *testing.T, s counter.Store) {
	f := func(hits []counter.Hit, want ...int64) {
		t.Helper()
		req := counter.Request{Hits: hits, Now: now()}
		if err := s.Add(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
		var got []int64
		for i := range hits {
			got = append(got, hits[i].After)
			if hits[i].Spared {
				t.Errorf("hit %d is spared without the stop option", i)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}
	}
	f(nil)
	f([]counter.Hit{h("a", 1), h("b", 3)}, 1, 3)
	f([]counter.Hit{h("a", 0)}, 1) // 0 hits only read the counter
	f([]counter.Hit{h("a", 0), h("none", 0)}, 1, 0)
	f([]counter.Hit{h("none", 0)}, 0)                          // and do not create it
	f([]counter.Hit{h("a", 1), h("a", 2), h("a", 0)}, 2, 4, 4) // hits on one key are counted one after another
	f([]counter.Hit{h("new", 1), h("new", 1), h("new", 0)}, 1, 2, 2)
	f([]counter.Hit{h("looked", 0), h("looked", 5), h("looked", 0)}, 0, 5, 5)

	f([]counter.Hit{refund(h("a", 1))}, 3)
	f([]counter.Hit{refund(h("a", 100))}, 0) // never below 0
	f([]counter.Hit{refund(h("gone", 7))}, 0)
	f([]counter.Hit{refund(h("a", 0))}, 0)
	f([]counter.Hit{h("a", 4), refund(h("a", 1)), h("a", 2), refund(h("a", 9)), h("a", 1)}, 4, 3, 5, 0, 1)
	f([]counter.Hit{refund(h("c", 5)), h("c", 3)}, 0, 3)

	// A total never exceeds 2^63-1, whether the store or its client detects the overflow.
	const top = math.MaxInt64
	f([]counter.Hit{h("huge", top)}, top)
	f([]counter.Hit{h("huge", 1)}, top)
	f([]counter.Hit{h("huge", 0)}, top)
	f([]counter.Hit{h("more", 5)}, 5)
	f([]counter.Hit{h("more", 1), h("more", top), h("more", top)}, 6, top, top)
	f([]counter.Hit{refund(h("more", 7))}, top-7)
	f([]counter.Hit{refund(h("more", top))}, 0)
	f([]counter.Hit{h("big", 9007199254740993)}, 9007199254740993) // 2^53+1, which a floating-point number cannot hold
	f([]counter.Hit{refund(h("big", 1))}, 9007199254740992)

	// A new window has another key, so its counter begins at 0.
	w := h("w_1700000000", 9)
	w.End = now() + 1
	f([]counter.Hit{w, h("w_1700000060", 1)}, 9, 1)

	// Keys may have any bytes and any length.
	f([]counter.Hit{h("", 1), h("\x00\r\n\xff", 2), h(string(make([]byte, 100_000)), 3)}, 1, 2, 3)

	if got, err := Peek(t.Context(), s, "b"); got != 3 || err != nil {
		t.Errorf("Peek: %d %v, want 3", got, err)
	}
	if got, err := Peek(t.Context(), s, "none"); got != 0 || err != nil {
		t.Errorf("Peek at nothing: %d %v, want 0", got, err)
	}

	// A counter that was reset begins at 0 again, even if changes to it had not reached the store yet.
	for _, n := range []uint64{3, 5} {
		f([]counter.Hit{h("reset", n), h("stays", 1)}, int64(n), int64(n)/2)
		for range 2 {
			gone := h("reset", 1)
			if err := s.Reset(t.Context(), &gone); err != nil {
				t.Errorf("Reset: %v", err)
			}
			if got, err := Peek(t.Context(), s, "reset"); got != 0 || err != nil {
				t.Errorf("Peek after Reset: %d %v, want 0", got, err)
			}
		}
	}
	f([]counter.Hit{h("reset", 1), h("reset", 1)}, 1, 2)
}

// testStop tests counter.StopAll: if a hit outside of shadow mode exceeds its limit, no hit is counted.
func testStop(t *testing.T, s counter.Store) {
	f := func(hits []counter.Hit, want ...result) {
		t.Helper()
		req := counter.Request{Hits: hits, Now: now(), Stop: counter.StopAll}
		if err := s.Add(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
		got := make([]result, len(hits))
		for i := range hits {
			got[i] = result{hits[i].After, hits[i].Spared}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("answers (-want +got):\n%s", d)
		}
	}
	stands := func(key string, want int64) {
		t.Helper()
		if got, err := Peek(t.Context(), s, key); got != want || err != nil {
			t.Errorf("%s stands at %d (%v), want %d", key, got, err, want)
		}
	}
	at := func(n int64) result { return result{After: n} }

	// Two limits in one request: sh allows 2 hits, ss allows 1.
	f([]counter.Hit{limit(2, h("sh", 1)), limit(1, h("ss", 1))}, at(1), at(1))
	for range 3 {
		f([]counter.Hit{limit(2, h("sh", 1)), limit(1, h("ss", 1))}, spared(1), at(2))
	}
	stands("sh", 1)
	stands("ss", 1) // the refused counter does not grow

	// Hits in shadow mode that exceed their limit do not stop other hits, and are not counted either.
	f([]counter.Hit{shadow(limit(0, h("shadow", 1))), h("beside", 1)}, at(1), at(1))
	stands("shadow", 0)
	stands("beside", 1)

	// The same key twice: the second hit exceeds the limit, so the first is spared.
	f([]counter.Hit{limit(3, h("twice", 2))}, at(2))
	f([]counter.Hit{limit(3, h("twice", 1)), limit(3, h("twice", 1)), h("other", 1)}, spared(2), at(4), spared(0))
	stands("twice", 2)
	stands("other", 0)
	f([]counter.Hit{limit(4, h("twice", 1)), limit(4, h("twice", 1))}, at(3), at(4))

	// An Err that is left from an earlier use of the hit has no effect.
	stale := limit(3, h("stale", 4))
	stale.Err = counter.ErrBusy
	f([]counter.Hit{stale, h("other", 1)}, at(4), spared(0))
	stands("stale", 0)

	// Hits with N = 0 only read a counter; refunds subtract from it.
	f([]counter.Hit{h("look", 0), h("other", 2)}, at(0), at(2))
	f([]counter.Hit{limit(1, h("other", 0)), h("look", 1)}, at(2), spared(0))
	f([]counter.Hit{refund(h("other", 1)), h("look", 1)}, at(1), at(1))
	f([]counter.Hit{refund(limit(0, h("other", 0))), h("look", 1)}, at(1), at(2))
	f([]counter.Hit{refund(h("other", 9)), limit(2, h("other", 2))}, at(0), at(2))
	f([]counter.Hit{refund(h("other", 1)), limit(0, h("full", 1))}, spared(2), at(1))
	stands("other", 2)
	stands("full", 0)
}

// Concurrent has 100 goroutines send 2000 hits to a counter with a limit of 1000: exactly 1000 are within it.
func Concurrent(t *testing.T, s counter.Store) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop=%v", stop), func(t *testing.T) {
			var ok atomic.Int64
			var wg sync.WaitGroup
			for g := range 100 {
				wg.Go(func() {
					for i := range 20 {
						req := counter.Request{Hits: []counter.Hit{
							limit(1000, h(fmt.Sprint("hot", stop), 1)),
							limit(1<<30, h(fmt.Sprint("own", stop, g), 1)),
						}, Now: now(), Stop: counter.StopWhen(stop)}
						if err := s.Add(context.Background(), &req); err != nil {
							t.Error(err)
							return
						}
						if req.Hits[0].After <= 1000 {
							ok.Add(1)
						}
						if got := req.Hits[1].After; !stop && got != int64(i+1) {
							t.Errorf("own counter of goroutine %d stands at %d, want %d", g, got, i+1)
						}
					}
				})
			}
			wg.Wait()
			if ok.Load() != 1000 {
				t.Errorf("%d hits within the limit, want exactly 1000", ok.Load())
			}
		})
	}
}

// testConcurrentRefunds sends as many refunds as hits: the total ends where it began, and is never negative.
func testConcurrentRefunds(t *testing.T, s counter.Store) {
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				req := counter.Request{Hits: []counter.Hit{h("ebb", 3), refund(h("ebb", 3))}, Now: now()}
				if err := s.Add(context.Background(), &req); err != nil {
					t.Error(err)
					return
				}
				if req.Hits[0].After < 3 || req.Hits[1].After < 0 {
					t.Errorf("totals %d %d", req.Hits[0].After, req.Hits[1].After)
				}
			}
		})
	}
	wg.Wait()
	if got, err := Peek(t.Context(), s, "ebb"); got != 0 || err != nil {
		t.Errorf("stands at %d (%v), want 0", got, err)
	}
}

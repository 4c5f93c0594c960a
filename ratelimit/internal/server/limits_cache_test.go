package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/modeltest"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/chaos"
)

// countedStore counts the requests that reach a store.
type countedStore struct {
	counter.Store
	asked atomic.Int64
}

func (s *countedStore) Add(ctx context.Context, r *counter.Request) error {
	s.asked.Add(1)
	return s.Store.Add(ctx, r)
}

// The over-limit cache answers as the store would: it refuses no hit that would pass, and no hit passes that the store
// would refuse, from two daemons on one store with a cache each, through reloads. A key to which one of them refunds
// hits is not used by the other, which would not know.
func TestLimits_overLimitCacheRandom(t *testing.T) {
	for _, b := range timedBackends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			clock := &testClock{}
			store := b.open(t, clock)
			asked, requests := int64(0), int64(0)
			for range chaos.Runs(4) {
				store.empty(t)
				n := againstStore(t, &store, clock, rand.Uint64(), 400)
				if asked, requests = asked+n, requests+400; t.Failed() {
					return
				}
			}
			if asked > requests*19/20 { // 71 to 91 % in some hundred runs
				t.Errorf("the store was asked by %d of %d requests: the caches knew too little to prove anything",
					asked, requests)
			}
			t.Logf("the store was asked by %d of %d requests", asked, requests)
		})
	}
}

// againstStore compares the answers to random requests with what the store says of their counters just before. It
// returns how many requests reached the store.
func againstStore(t *testing.T, store *timedStore, clock *testClock, seed uint64, requests int) (asked int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	yaml, entries := randomRules(r, 3, 1)
	stores := []*countedStore{{Store: store.Store}, {Store: store.Store}}
	if store.another != nil {
		stores[1].Store = store.another(t, clock)
	}
	at := int64(minuteStart * 1_000_000)
	clock.set(at)
	var rigs []*rig
	for _, s := range stores {
		o := service.Options{Store: s, Clock: clock.time, OverLimit: overlimit.New(1 << 20)}
		rigs = append(rigs, newRig(t, o, limits.Options{}, yaml))
	}
	for range requests {
		if r.IntN(100) == 0 { // the same limits or others, of the same counters
			if r.IntN(2) == 0 {
				yaml, entries = randomRules(r, 3, 1)
			}
			for _, rig := range rigs {
				rig.load(t, limits.Options{}, yaml)
			}
		}
		at += r.Int64N(1 << r.IntN(25)) // up to 16 s
		clock.set(at)
		i := r.IntN(len(entries))
		daemon, refund := 0, false
		if i%2 == 0 {
			daemon = r.IntN(2)
		} else {
			refund = r.IntN(6) == 0
		}
		in := req("d", fmt.Sprintf("(k%d,v)", i))
		n := uint64(r.Int64N(4))
		in.Descriptors[0].HitsAddend, in.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(n), refund
		want := !refund && wouldRefuse(t, store, rigs[0], in, entries[i], n, at)
		got := rigs[daemon].ask(t, in)
		store.keep(t)
		if over := got.OverallCode == pb.RateLimitResponse_OVER_LIMIT; over != want && !refund {
			t.Fatalf("seed %d, at %d, daemon %d, %d hits: refused %v, the store would %v\n%v\n%v", seed, at, daemon,
				n, over, want, in, got)
		}
	}
	return stores[0].asked.Load() + stores[1].asked.Load()
}

// wouldRefuse reports whether the store would refuse n hits by some limit that is not in shadow mode.
func wouldRefuse(t *testing.T, store *timedStore, r *rig, in *pb.RateLimitRequest, list []modeltest.Limit, n uint64,
	at int64) bool {
	t.Helper()
	refused := false
	for _, h := range r.hits(t, in, at) {
		if err := store.Peek(t.Context(), &h); err != nil {
			t.Fatal(err)
		}
		h.N = n
		if h.Algorithm == counter.FixedWindow {
			h.After += int64(n)
		} else {
			state := h.State
			h.Judge(&state)
		}
		shadow := false
		for _, l := range list {
			if l.Algorithm == h.Algorithm && l.Window == h.Window {
				shadow = l.Shadow
			}
		}
		refused = refused || h.IsOver() && !shadow
	}
	return refused
}

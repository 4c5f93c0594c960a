package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
)

const noon = countertest.Noon

func hit(key string, n, limit uint64, end int64) counter.Hit {
	return counter.Hit{Key: []byte(key), N: n, Meter: counter.Meter{Limit: limit, Window: 60}, End: end}
}

// add carries out one hit and returns its total.
var add = countertest.Add

func TestMemory(t *testing.T) {
	countertest.Run(t, func(*testing.T) counter.Store { return New(Options{}) })
}

func TestMemory_meters(t *testing.T) {
	countertest.RunMeters(t, func(_ *testing.T, clock func() int64) counter.Store { return New(Options{Clock: clock}) })
}

func TestMemory_sweep(t *testing.T) {
	m := New(Options{})
	for i := range 10_000 {
		add(t, m, noon, hit(fmt.Sprint("old", i), 1, 10, noon+1))
	}
	if m.Len() != 10_000 {
		t.Fatalf("%d counters, want 10000", m.Len())
	}
	// In the grace after its window a counter still stands.
	if got := add(t, m, noon+1, hit("old0", 1, 10, noon+1)); got != 2 {
		t.Errorf("a late hit counted as %d, want 2", got)
	}
	for i := range 10_000 {
		add(t, m, noon+100, hit(fmt.Sprint("new", i), 1, 10, noon+101))
	}
	if m.Len() > 10_100 {
		t.Errorf("%d counters after as many new ones as old ones: the old were not swept", m.Len())
	}
	// A flood that has passed gives its memory back.
	slots := func() (n int) {
		for i := range m.shards {
			n += len(m.shards[i].fixed.slots)
		}
		return n
	}
	flood := slots()
	for i := range 20_000 {
		add(t, m, noon+200+int64(i/100), hit(fmt.Sprint("few", i), 1, 10, noon+201+int64(i/100)))
	}
	if now := slots(); now > flood*2/3 {
		t.Errorf("%d slots remain of %d", now, flood)
	}
}

// The table must agree with a plain map whatever is inserted, swept and evicted.
func TestMemory_model(t *testing.T) {
	m := New(Options{})
	r := rand.New(rand.NewPCG(1, 2))
	model := map[string]int64{}
	for i := range 200_000 {
		now := int64(noon + i/1000)
		k := r.IntN(3000)
		end := now - now%7 + 7
		key := fmt.Sprint(k, "_", end)
		model[key] += 2
		if got := add(t, m, now, hit(key, 2, 10, end)); got != model[key] {
			t.Fatalf("hit %d on %s: %d, want %d", i, key, got, model[key])
		}
	}
}

func TestMemory_full(t *testing.T) {
	evicted := 0
	m := New(Options{Settings: Settings{MaxKeys: 5000}, Evicted: func() { evicted++ }})
	const end = noon + 60
	for i := range 1000 { // blocked ones
		add(t, m, noon, hit(fmt.Sprint("blocked", i), 10, 10, end))
	}
	for i := range 1000 { // half used
		add(t, m, noon, hit(fmt.Sprint("half", i), 5, 10, end))
	}
	for i := range 50_000 { // an inventor of values
		add(t, m, noon, hit(fmt.Sprint("invented", i), 1, 10, end))
		if m.Len() > 5000 {
			t.Fatalf("%d counters are stored, allowed are 5000", m.Len())
		}
	}
	if evicted != 52_000-5000 {
		t.Errorf("%d evictions counted, want 47000", evicted)
	}
	half := 0
	for i := range 1000 {
		if got, _ := countertest.Peek(t.Context(), m, fmt.Sprint("blocked", i)); got != 10 {
			t.Fatalf("blocked%d stands at %d: the flood has freed it", i, got)
		}
		if got, _ := countertest.Peek(t.Context(), m, fmt.Sprint("half", i)); got == 5 {
			half++
		}
	}
	if half < 950 {
		t.Errorf("only %d of 1000 half used counters survived beside unused ones", half)
	}

	// Full of blocked counters: nothing can be evicted.
	m = New(Options{Settings: Settings{MaxKeys: 100}})
	for i := range 100 {
		add(t, m, noon, hit(fmt.Sprint("blocked", i), 10, 10, end))
	}
	req := &counter.Request{Hits: []counter.Hit{hit("one more", 1, 10, end)}, Now: noon}
	if err := m.Add(t.Context(), req); err != counter.ErrFull {
		t.Errorf("Add to a full store: %v, want ErrFull", err)
	}
	req.Stop = counter.StopAll
	if err := m.Add(t.Context(), req); err != counter.ErrFull {
		t.Errorf("Add with Stop to a full store: %v, want ErrFull", err)
	}
	if got := add(t, m, noon, hit("blocked7", 1, 10, end)); got != 11 {
		t.Errorf("a counter held: %d, want 11", got)
	}
	// Ended windows make room without counting as evictions.
	req.Now = end
	if err := m.Add(t.Context(), req); err != nil {
		t.Errorf("Add after the windows' end: %v", err)
	}
}

func TestShard_size(t *testing.T) {
	if n := unsafe.Sizeof(shard{}); n != 64 {
		t.Errorf("a shard has %d bytes, not those of a cache line", n)
	}
	if n := unsafe.Sizeof(slot[total]{}); n != 32 {
		t.Errorf("a slot of a fixed window has %d bytes, want 32", n)
	}
	if n := unsafe.Sizeof(slot[meter]{}); n != 48 {
		t.Errorf("a slot of a sliding window or a token bucket has %d bytes, want 48", n)
	}
}

// BenchmarkAlgorithms is one hit on a counter that is there, of each algorithm.
func BenchmarkAlgorithms(b *testing.B) {
	for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow, counter.TokenBucket} {
		for _, limit := range []uint64{1 << 30, 1} {
			b.Run(fmt.Sprintf("%s/limit=%d", algorithm, limit), func(b *testing.B) {
				m := New(Options{})
				b.ReportAllocs()
				keys := make([][]byte, 10_000)
				for i := range keys {
					keys[i] = fmt.Appendf(nil, "bench_user_%06d_path_/api_%d", i, noon)
				}
				r := rand.New(rand.NewPCG(1, 1))
				req := counter.Request{Hits: make([]counter.Hit, 1), Now: noon, Instant: noon * 1_000_000}
				for b.Loop() {
					req.Hits[0] = counter.Hit{Key: keys[r.IntN(len(keys))], N: 1, End: noon + 60,
						Meter: counter.Meter{Algorithm: algorithm, Limit: limit, Burst: limit, Window: 3600}}
					if m.Add(context.Background(), &req) != nil || req.Hits[0].After < 1 {
						b.Fatal("not counted")
					}
				}
			})
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, hits := range []int{1, 4} {
		b.Run(fmt.Sprintf("hits=%d", hits), func(b *testing.B) {
			m := New(Options{})
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := rand.New(rand.NewPCG(rand.Uint64(), 1))
				keys := make([][]byte, 10_000)
				for i := range keys {
					keys[i] = fmt.Appendf(nil, "bench_user_%06d_path_/api_%d", i, noon)
				}
				req := counter.Request{Hits: make([]counter.Hit, hits), Now: noon}
				for pb.Next() {
					for i := range req.Hits {
						req.Hits[i] = counter.Hit{Key: keys[r.IntN(len(keys))], N: 1, End: noon + 60,
							Meter: counter.Meter{Limit: 1000, Window: 60}}
					}
					if m.Add(context.Background(), &req) != nil || req.Hits[0].After < 1 {
						b.Fatal("not counted")
					}
				}
			})
		})
	}
}

// A request that comes late to a counter's lock is judged at the instant of those before it: at the edge of a window it
// would otherwise take the counter back into the one that has ended.
func TestMemory_late(t *testing.T) {
	m := New(Options{})
	const edge = 1_700_000_040_000_000
	f := func(instant int64, n uint64, want string) {
		t.Helper()
		req := counter.Request{Hits: []counter.Hit{countertest.Sliding("k", n, 10)}, Now: noon, Instant: instant}
		if err := m.Add(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
		if got := countertest.Answer(&req.Hits[0]); got != want {
			t.Errorf("%d µs after the edge: %s, want %s", instant-edge, got, want)
		}
	}
	f(edge-10, 9, "9")
	f(edge+10, 1, "10")
	f(edge-5, 1, "11 over")
	f(edge+20, 1, "11 over")
	f(edge-30_000_000, 1, "7") // half a minute is no delay: the clock has gone back
}

// Both tables are bounded together, and of both the counter least used goes first.
func TestMemory_fullOfMeters(t *testing.T) {
	evicted, instant := 0, int64(noon*1_000_000)
	m := New(Options{Settings: Settings{MaxKeys: 1000}, Evicted: func() { evicted++ }, Clock: func() int64 {
		return instant
	}})
	try := func(h counter.Hit) error {
		return m.Add(t.Context(), &counter.Request{Hits: []counter.Hit{h}, Now: instant / 1_000_000})
	}
	must := func(h counter.Hit) {
		t.Helper()
		if err := try(h); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 { // blocked ones
		must(hit(fmt.Sprint("fixed", i), 10, 10, noon+60))
		must(countertest.Sliding(fmt.Sprint("sliding", i), 10, 10))
		must(countertest.Bucket(fmt.Sprint("bucket", i), 10, 10, 10))
	}
	for i := range 10_000 { // an inventor of values
		key := fmt.Sprint("invented", i)
		switch i % 3 {
		case 0:
			must(hit(key, 1, 10, noon+60))
		case 1:
			must(countertest.Sliding(key, 1, 10))
		case 2:
			must(countertest.Bucket(key, 1, 10, 10))
		}
		if m.Len() > 1000 {
			t.Fatalf("%d counters are stored, allowed are 1000", m.Len())
		}
	}
	if evicted != 10_150-1000 {
		t.Errorf("%d evictions counted, want 9150", evicted)
	}
	for i := range 50 {
		for _, h := range []counter.Hit{hit(fmt.Sprint("fixed", i), 0, 10, 0),
			countertest.Sliding(fmt.Sprint("sliding", i), 0, 10),
			countertest.Bucket(fmt.Sprint("bucket", i), 0, 10, 10)} {
			if m.Peek(t.Context(), &h); h.After != 10 {
				t.Fatalf("%s stands at %d: the flood has freed it", h.Key, h.After)
			}
		}
	}

	// Full of blocked counters: nothing can be evicted.
	m = New(Options{Settings: Settings{MaxKeys: 99}, Evicted: func() { evicted++ }, Clock: func() int64 {
		return instant
	}})
	for i := range 33 {
		must(hit(fmt.Sprint("fixed", i), 10, 10, noon+60))
		must(countertest.Sliding(fmt.Sprint("sliding", i), 10, 10))
		must(countertest.Bucket(fmt.Sprint("bucket", i), 10, 10, 10))
	}
	if err := try(countertest.Sliding("one more", 1, 10)); err != counter.ErrFull {
		t.Errorf("a sliding window in a full store: %v, want ErrFull", err)
	}
	if err := m.Add(t.Context(), &counter.Request{Hits: []counter.Hit{countertest.Bucket("one more", 1, 10, 10)},
		Now: noon, Stop: counter.StopAll}); err != counter.ErrFull {
		t.Errorf("a token bucket in a full store, with the stop option: %v, want ErrFull", err)
	}
	must(countertest.Sliding("never stored", 0, 10))
	// What is empty again makes room, and is no eviction.
	evicted = 0
	instant += 120_000_000
	for i := range 50 {
		must(countertest.Sliding(fmt.Sprint("later", i), 1, 10))
	}
	if evicted != 0 || m.Len() > 99 {
		t.Errorf("%d evictions, %d counters", evicted, m.Len())
	}
}

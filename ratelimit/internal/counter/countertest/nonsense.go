package countertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
)

// Nonsense is a test of a store whose server sends broken replies.
type Nonsense struct {
	Store  counter.Store
	Proxy  *Garbler // between the store and its server
	Garble Garble
	Hits   func(i int) []counter.Hit // of the ith request
	Lost   func() uint64             // how many hits the store could not count
}

// Run keeps sending hits, garbles one reply of the server, and then a tenth of the replies for a while.
//
// No counter may let more hits pass than its capacity plus the hits that were lost. After the last broken reply, the
// store must answer again within a short time.
func (n Nonsense) Run(t *testing.T) {
	l := startLoad(n.Store, n.Hits)
	defer l.stop(t, n.Lost)
	answers := func(when string) {
		t.Helper()
		since := time.Now()
		await.True(t, "an answer "+when, func() bool { return time.Unix(0, l.answered.Load()).After(since) })
		if took := time.Since(since); took > 10*time.Second { // the store promises 2 s, but a test machine may be busy
			t.Errorf("an answer %s took %v", when, took)
		} else {
			t.Logf("an answer %s took %v", when, took.Round(time.Millisecond))
		}
	}
	answers("at the start")
	n.Proxy.Once(n.Garble)
	await.True(t, "a reply is garbled", func() bool { return n.Proxy.Garbled() > 0 })
	answers("after one broken reply")
	n.Proxy.At(0.1, n.Garble)
	time.Sleep(500 * time.Millisecond)
	n.Proxy.At(0, n.Garble)
	answers("after the last broken reply")
	t.Logf("%d replies garbled, %d requests failed", n.Proxy.Garbled(), l.failed.Load())
}

// load sends hits from several goroutines, and counts those that pass.
type load struct {
	answered atomic.Int64 // when the last request was answered, in Unix nanoseconds
	failed   atomic.Int64
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu               sync.Mutex
	passed, capacity map[string]uint64
}

func startLoad(s counter.Store, hits func(i int) []counter.Hit) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, passed: map[string]uint64{}, capacity: map[string]uint64{}}
	for range 8 {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				l.once(s, hits(i))
			}
		})
	}
	return l
}

// once sends one request, and counts its hits that pass.
func (l *load) once(s counter.Store, hits []counter.Hit) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.Add(ctx, &counter.Request{Hits: hits, Now: Now()}); err != nil {
		l.failed.Add(1)
		time.Sleep(time.Millisecond)
		return
	}
	l.answered.Store(time.Now().UnixNano())
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range hits {
		if h := &hits[i]; !h.IsOver() {
			l.passed[string(h.Key)] += h.N
			l.capacity[string(h.Key)] = h.Capacity()
		}
	}
}

// stop ends the load, and reports counters that let too many hits pass.
func (l *load) stop(t *testing.T, lost func() uint64) {
	l.cancel()
	l.wg.Wait()
	if len(l.passed) == 0 {
		t.Error("nothing passed")
	}
	for key, n := range l.passed {
		if n > l.capacity[key]+lost() {
			t.Errorf("%s let %d hits of %d pass, where %d were lost", key, n, l.capacity[key], lost())
		}
	}
}

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

// Nonsense tests a store whose server sends broken replies. It keeps sending hits, garbles one reply of the server by
// means of proxy, and then a tenth of the replies for a while. hits returns the hits of the ith request.
//
// No counter may let more hits pass than its capacity plus the hits that lost returns, which the store could not count.
// The store must answer again soon after the last broken reply.
func Nonsense(t *testing.T, s counter.Store, proxy *Garbler, g Garble, lost func() uint64,
	hits func(i int) []counter.Hit) {
	l := startLoad(s, hits)
	defer l.stop(t, lost)
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
	proxy.Once(g)
	await.True(t, "a reply is garbled", func() bool { return proxy.Garbled() > 0 })
	answers("after one broken reply")
	proxy.At(0.1, g)
	time.Sleep(500 * time.Millisecond)
	proxy.At(0, g)
	answers("after the last broken reply")
	t.Logf("%d replies garbled, %d requests failed", proxy.Garbled(), l.failed.Load())
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

package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// stubLink answers every batch as an empty store would, so that what remains is the batcher's own cost.
type stubLink struct{ sent atomic.Int64 }

func (l *stubLink) send(b *batch) error {
	l.sent.Add(1)
	for i := range b.ops {
		b.ops[i].base = 0
	}
	return nil
}
func (l *stubLink) ping() error { return nil }
func (l *stubLink) drop()       {}
func (l *stubLink) close()      {}

// newStubStore is a store above a stub.
func newStubStore(t testing.TB) *Server {
	s := newServer(Options{})
	s.newLink = func(time.Duration) connection { return new(stubLink) }
	s.run(s.newLink(0))
	t.Cleanup(s.Close)
	return s
}

func benchKeys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "bench_user_%06d_path_/api_%d", i, noon)
	}
	return keys
}

// drive has some goroutines add hits until b is done, as request handlers do: each with a deadline.
func drive(b *testing.B, s counter.Store, goroutines, hits int) {
	keys := benchKeys(10_000)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(b.N))
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ReportAllocs()
	b.ResetTimer()
	await.Together(goroutines, func(g int) {
		r := rand.New(rand.NewPCG(uint64(g), 1))
		req := counter.Request{Hits: make([]counter.Hit, hits), Now: now()}
		for left.Add(-1) >= 0 {
			for i := range req.Hits {
				req.Hits[i] = counter.Hit{Key: keys[r.IntN(len(keys))], N: 1, End: req.Now + 600,
					Meter: counter.Meter{Limit: 1000, Window: 60}}
			}
			if err := s.Add(ctx, &req); err != nil || req.Hits[0].After < 1 {
				b.Error("not counted: ", err)
				return
			}
		}
	})
	b.StopTimer()
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
}

func BenchmarkBatcher(b *testing.B) {
	for _, hits := range []int{1, 4} {
		b.Run(fmt.Sprintf("hits=%d", hits), func(b *testing.B) { drive(b, newStubStore(b), 256, hits) })
	}
}

func BenchmarkKVStore(b *testing.B) {
	kv := testdb.Redis(b)
	for _, goroutines := range []int{1, 16, 256} {
		for _, hits := range []int{1, 4} {
			b.Run(fmt.Sprintf("goroutines=%d/hits=%d", goroutines, hits), func(b *testing.B) {
				s := newTestStore(b, Options{Settings: Settings{URL: kv.URL()}})
				drive(b, s, goroutines, hits)
			})
		}
	}
}

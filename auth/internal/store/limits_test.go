package store_test

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
)

func TestLimit(t *testing.T) {
	hourly := store.Limit{Size: 30, Refill: time.Hour}
	f := func(l store.Limit, v store.Level, after time.Duration, n, left float64, wait time.Duration) {
		t.Helper()
		now := noon.Add(after)
		if got := l.Left(v, now); math.Abs(got-left) > 1e-9 {
			t.Errorf("left %v, want %v", got, left)
		}
		if got := l.Wait(v, now, n); got != wait {
			t.Errorf("wait %v, want %v", got, wait)
		}
	}
	f(hourly, store.Level{}, 0, 30, 30, 0)
	f(hourly, store.Level{}, 0, 31, 30, math.MaxInt64)
	f(hourly, store.Level{At: noon}, 0, 1, 0, 2*time.Minute)
	f(hourly, store.Level{At: noon}, 2*time.Minute, 1, 1, 0)
	f(hourly, store.Level{At: noon, Tokens: 29}, time.Hour, 1, 30, 0)
	f(hourly, store.Level{At: noon, Tokens: 5}, -time.Hour, 1, 5, 0) // a clock set back removes no tokens
	pause := store.NewInterval(nil, time.Minute)
	f(pause, store.Level{At: noon}, 20*time.Second, 1, 1./3, 40*time.Second)
	f(pause, store.Level{At: noon}, time.Minute, 1, 1, 0)
	f(store.Limit{Size: 0, Refill: time.Hour}, store.Level{}, 0, 1, 0, math.MaxInt64)
	f(store.NewInterval(nil, 0), store.Level{At: noon}, 0, 1, 1, 0)
}

func TestTake(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	take := func(l store.Limit, n float64, after time.Duration, want bool) {
		t.Helper()
		err := try(t, db, func(b *store.Batch) {
			b.Take(l, n, noon.Add(after))
			b.Audit(store.Audit{At: noon, Action: store.ActionLogin})
		})
		limited, _ := errors.AsType[*store.LimitError](err)
		if want != (err == nil) || err != nil && (limited == nil || string(limited.Limit.Key) != string(l.Key)) {
			t.Errorf("taking %v after %v: %v, want %v", n, after, err, want)
		}
		// Reading gives the same answer as taking.
		var levels []store.Level
		send(t, db, func(b *store.Batch) { b.Levels(&levels, store.Limit{Key: []byte("unused")}, l) })
		if err != nil && l.Wait(levels[1], noon.Add(after), n) == 0 || !levels[0].At.IsZero() {
			t.Errorf("after a refusal the levels are %+v", levels)
		}
	}
	l := store.Limit{Key: []byte("mail"), Size: 3, Refill: 3 * time.Minute}
	for range 3 {
		take(l, 1, 0, true)
	}
	take(l, 1, 0, false)
	take(l, 0, 0, true)
	take(l, 1, 59*time.Second, false)
	take(l, 1, time.Minute, true)
	take(l, 1, time.Minute, false)
	take(l, 3, time.Hour, true)
	take(l, 1, time.Hour, false)
	take(store.Limit{Key: []byte("none"), Size: 0, Refill: time.Hour}, 1, 0, false)
	take(store.Limit{Key: []byte("none"), Size: 0, Refill: time.Hour}, 0, 0, true)
	// What a refused batch held besides did not happen.
	if got := trail(t, db); len(got) != 7 {
		t.Errorf("noted %d times, want 7", len(got))
	}
	send(t, db, func(b *store.Batch) { b.ForgetLimits(l.Key) })
	take(l, 3, time.Hour, true)
}

// Over any number of replicas no more is taken than there is.
func TestTake_parallel(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	l := store.Limit{Key: []byte("mail"), Size: 10, Refill: time.Hour}
	var taken atomic.Int64
	await.Together(50, func(int) {
		b := db.Batch()
		b.Take(l, 1, noon)
		if b.Send(t.Context()) == nil {
			taken.Add(1)
		}
	})
	if taken.Load() != 10 {
		t.Errorf("%d taken of 10", taken.Load())
	}
}

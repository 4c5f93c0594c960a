package overlimit

import (
	"strings"
	"testing"
)

const noon = 1_700_000_000

type fakeClock uint32

func (c *fakeClock) Now() uint32 { return uint32(*c) }

func TestOverLimit(t *testing.T) {
	clock := fakeClock(noon)
	o := newCache(0, &clock)
	f := func(key string, want int64, wantOK bool) {
		t.Helper()
		if got, ok := o.Get([]byte(key)); got != want || ok != wantOK {
			t.Errorf("Get %.20q = %d %v, want %d %v", key, got, ok, want, wantOK)
		}
	}
	long := strings.Repeat("x", 70_000)
	f("a", 0, false)
	o.Set([]byte("a"), 11, 40)
	o.Set([]byte(long), 12, 40)
	o.Set([]byte(long+"y"), 13, 40)
	o.Set([]byte("never"), 1, 0)
	f("a", 11, true)
	f(long, 12, true)
	f(long+"y", 13, true)
	f("never", 0, false)
	o.Set([]byte("a"), 14, 40)
	f("a", 14, true)
	o.Delete([]byte("a"))
	f("a", 0, false)
	o.Delete([]byte(long))
	f(long, 0, false)
	clock = noon + 39
	f(long+"y", 13, true)
	clock = noon + 40 // the window ends
	f(long+"y", 0, false)
	o.Set([]byte("a"), 11, 40)
	gauges := o.Gauges()
	for name, want := range map[string]int64{"hitCount": 5, "missCount": 5, "lookupCount": 10, "expiredCount": 1,
		"entryCount": 1} {
		if got := gauges[name](); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	o.Clear()
	f("a", 0, false)
}

// What is kept of sliding windows and token buckets, in addition to what is kept of fixed ones.
func TestOverLimit_wait(t *testing.T) {
	clock := fakeClock(noon)
	o := newCache(0, &clock)
	long := strings.Repeat("x", 500)
	a, b := Wait{Pass: 1_500_000, Until: 1_000_000, Limit: 10, Capacity: 20},
		Wait{Pass: 1 << 62, Until: 1, Limit: 1<<32 - 1}
	o.SetWait([]byte("a"), a, 2)
	o.SetWait([]byte(long), b, 40)
	o.SetWait([]byte("never"), a, 0)
	o.Set([]byte("fixed"), 7, 40)
	f := func(key string, want Wait, wantOK bool) {
		t.Helper()
		if got, ok := o.GetWait([]byte(key)); got != want || ok != wantOK {
			t.Errorf("%.20q: %+v %v, want %+v %v", key, got, ok, want, wantOK)
		}
	}
	f("a", a, true)
	f(long, b, true)
	f("never", Wait{}, false)
	f("fixed", Wait{}, false)
	if _, ok := o.Get([]byte("a")); ok {
		t.Error("a wait was read as a counter")
	}
	clock = noon + 2
	f("a", Wait{}, false)
	o.Delete([]byte(long))
	f(long, Wait{}, false)
}

func BenchmarkOverLimit(b *testing.B) {
	o := New(1 << 20)
	key := []byte("bench_user_000001_1700000000")
	o.Set(key, 11, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if v, ok := o.Get(key); v != 11 || !ok {
			b.Fatal("not found")
		}
	}
}

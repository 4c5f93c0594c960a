package observe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/rls"
)

func TestTop(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{TopKeys: 8})
	note := func(second int, descriptors string, hits uint32) {
		t.Helper()
		d := decision(t, rules, "shop", descriptors)
		d.Done, d.Request.HitsAddend = testNow.Add(time.Duration(second)*time.Second), hits
		o.Watching().Note(d, nil)
	}
	f := func(second int, domain string, want ...TopKey) {
		t.Helper()
		at := testNow.Add(time.Duration(second) * time.Second)
		from, got := o.Top().Read(at, domain)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("second %d: want (-), got (+):\n%s", second, d)
		}
		if want := at.Truncate(time.Minute).Add(-time.Minute); !from.Equal(want) {
			t.Errorf("second %d: the minute begins at %s, want %s", second, from, want)
		}
	}
	user := func(name string, hits uint64) TopKey {
		return TopKey{Domain: "shop", Entries: []rls.Entry{{Key: "user", Value: name}}, Rule: "shop.user", Hits: hits}
	}
	f(0, "")
	note(0, "user=ann", 0)
	note(1, "user=bob|nothing=here|open=1|free=lunch", 5)
	note(2, "user=ann", 2)
	note(3, "shared=a1", 1)
	note(4, "shared=a2", 1)
	f(10, "") // 22:13 is not over
	// 22:13:20 + 40 is 22:14.
	shared := TopKey{Domain: "shop", Entries: []rls.Entry{{Key: "shared", Value: "a1"}}, Rule: "shop.shared_a*", Hits: 2}
	f(40, "", user("bob", 5), user("ann", 3), shared)
	f(40, "shop", user("bob", 5), user("ann", 3), shared)
	f(40, "mall")
	note(41, "user=cid", 7)
	f(41, "", user("bob", 5), user("ann", 3), shared)
	note(100, "user=dan", 1)
	f(100, "", user("cid", 7))
	f(160, "", user("dan", 1))
	f(220, "") // a minute without hits
	note(1000, "user=eve", 1)
	f(1000, "")

	d := decision(t, rules, "shop", "user=refund|user=own|user=looks")
	d.Done = testNow.Add(1001 * time.Second)
	d.Request.Descriptors[0].Negative = true
	d.Request.Descriptors[1].HasLimit, d.Rules[1] = true, new(limits.Rule)
	rules.Override(d.Rules[1], rls.Override{PerUnit: 3, Unit: rls.Hour})
	d.Request.Descriptors[2].HasHits = true
	o.Watching().Note(d, nil)
	f(1060, "", user("eve", 1), TopKey{Domain: "shop", Entries: []rls.Entry{{Key: "user", Value: "own"}}, Hits: 1})
}

// TestTop_clock: a clock that jumped ahead and came back does not stop the count until it is there again.
func TestTop_clock(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{TopKeys: 8})
	note := func(minute int, descriptors string) {
		t.Helper()
		d := decision(t, rules, "shop", descriptors)
		d.Done = testNow.Add(time.Duration(minute) * time.Minute)
		o.Watching().Note(d, nil)
	}
	f := func(minute int, want ...string) {
		t.Helper()
		at := testNow.Add(time.Duration(minute) * time.Minute)
		from, keys := o.Top().Read(at, "")
		var got []string
		for _, k := range keys {
			got = append(got, fmt.Sprint(k.Entries[0].Value, " ", k.Hits))
		}
		if whole := at.Truncate(time.Minute).Add(-time.Minute); !slices.Equal(got, want) || !from.Equal(whole) {
			t.Errorf("minute %d: %v from %v, want %v from %v", minute, got, from, want, whole)
		}
	}
	note(0, "user=ann")
	note(1, "user=bob")
	f(1, "ann 1")
	note(1440, "user=ahead")
	f(1440)
	note(2, "user=cid")
	f(2)
	note(1, "user=late")
	note(2, "user=cid")
	f(3, "cid 2", "late 1")
}

// TestTexts holds what is left of a counter key in both layouts.
func TestTexts(t *testing.T) {
	f := func(key, want string) {
		t.Helper()
		if got := string(texts([]byte(key))); got != want {
			t.Errorf("texts(%q) = %q, want %q", key, got, want)
		}
	}
	f("shop_user_ann_1699999980", "shop_user_ann")
	f("shop_user_ann_0", "shop_user_ann")
	f("shop_user_ann_1699999980~fh1", "shop_user_ann")
	f("shop_user_ann_1699999980~cM1", "shop_user_ann")
	f("shop_user_ann_~rm1", "shop_user_ann")
	f("shop_user_a|1_~bm12", "shop_user_a|1")
	f("shop_user_a|1_0", "shop_user_a|1")
	f("shop|user=ann|m1|1699999980", "shop|user=ann")
	f("shop|user=a_1|cM1|1699999980", "shop|user=a_1")
	f("shop|user=a_1|rm1", "shop|user=a_1")
	f("shop|user~a_1|bm12", "shop|user~a_1")
	f("x|shop|user=ann|m1|0", "x|shop|user=ann")
	f("", "")
}

// TestTop_reading: a minute that is being read is not counted into.
func TestTop_reading(t *testing.T) {
	rules, o := testRules(t), newObserver(Settings{TopKeys: 2})
	d := decision(t, rules, "shop", "user=ann")
	o.Watching().Note(d, nil)
	top := o.Top()
	top.mu.Lock()
	top.turn(testNow.Unix()/60 + 1)
	read := top.last
	read.readers++
	top.mu.Unlock()
	for i := range 5 {
		d = decision(t, rules, "shop", "user=bob")
		d.Done = testNow.Add(time.Duration(i+1) * time.Minute)
		o.Watching().Note(d, nil)
	}
	if got := read.slots[0].key().Entries[0].Value; got != "ann" || len(read.slots) != 1 {
		t.Errorf("%d slots, the first of %s", len(read.slots), got)
	}
}

// TestTop_texts: the texts of a slot share one place, and what does not fit is cut.
func TestTop_texts(t *testing.T) {
	rules := testRules(t)
	f := func(domain, descriptor string, want TopKey) {
		t.Helper()
		var s slot
		d := decision(t, rules, domain, descriptor)
		if d.Rules[0] == nil {
			d.Rules[0] = new(limits.Rule)
		}
		s.describe(d, 0)
		if d := cmp.Diff(want, s.key()); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	long := strings.Repeat("x", 500)
	f("shop", "user="+long, TopKey{Domain: "shop",
		Entries: []rls.Entry{{Key: "user", Value: long[:slotText-ruleText-11]}},
		Rule:    "shop.user", Cut: true})
	f("shop", "user=a"+strings.Repeat("ü", 60),
		TopKey{Domain: "shop", Entries: []rls.Entry{{Key: "user", Value: "a" + strings.Repeat("ü", 46)}},
			Rule: "shop.user", Cut: true})
	f(long, "user=ann", TopKey{Domain: long[:slotText-ruleText-1], Entries: []rls.Entry{}, Cut: true})
	f(long[:100], "user=ann", TopKey{Domain: long[:100], Entries: []rls.Entry{{Key: "u", Value: ""}}, Cut: true})
	f("\xff", "a=\xfe", TopKey{Domain: `\xff`, Entries: []rls.Entry{{Key: "a", Value: `\xfe`}}})
	f("d", strings.Repeat("a=b,", 64)+"c=d", TopKey{Domain: "d",
		Entries: slices.Repeat([]rls.Entry{{Key: "a", Value: "b"}}, 25),
		Cut:     true})
}

// TestMinute_bounds holds the counts against exact ones: never too low, too high by at most the error that is shown,
// which is at most the hits of all over the number of keys; and each key above that is there.
func TestMinute_bounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for run := range 200 {
		size := 1 + random.IntN(40)
		id := func(key uint64) uint64 { return key } // ids that lie side by side
		if run%2 == 0 {
			id = func(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 }
		}
		m, exact, total := newMinute(size), map[uint64]uint64{}, uint64(0)
		spread := 0.5 + 2*random.Float64()
		for range random.IntN(5000) {
			key := uint64(math.Pow(float64(1+random.IntN(1000)), spread))
			hits := uint64(1 + random.IntN(1+run%10))
			exact[id(key)] += hits
			total += hits
			m.add(id(key), hits)
		}
		sum := uint64(0)
		for i := range m.slots {
			s := &m.slots[i]
			sum += s.hits
			if want := exact[s.id]; s.hits < want || s.hits-s.err > want {
				t.Fatalf("run %d: %d hits with an error of %d, exactly %d", run, s.hits, s.err, want)
			}
			if s.err > total/uint64(size) {
				t.Fatalf("run %d: an error of %d with %d hits and %d keys", run, s.err, total, size)
			}
			if m.index[m.index.find(s.id, m.slots)] != int32(i+1) || m.heap[s.place] != (ranked{s.hits, int32(i)}) {
				t.Fatalf("run %d: slot %d is lost", run, i)
			}
			if above := (s.place - 1) / 2; s.place > 0 && m.heap[above].hits > s.hits {
				t.Fatalf("run %d: the heap is out of order", run)
			}
		}
		used := 0
		for _, i := range m.index {
			used += min(int(i), 1)
		}
		if sum != total || used != len(m.slots) {
			t.Fatalf("run %d: %d hits in all, want %d; %d keys, %d slots", run, sum, total, used, len(m.slots))
		}
		for key, hits := range exact {
			if m.index[m.index.find(key, m.slots)] == 0 && hits > total/uint64(size) {
				t.Fatalf("run %d: a key with %d of %d hits is not among %d", run, hits, total, size)
			}
		}
	}
	m := newMinute(1)
	m.add(1, math.MaxInt64)
	m.add(1, math.MaxInt64)
	m.add(1, math.MaxInt64)
	if got := m.slots[0].hits; got != math.MaxUint64 {
		t.Errorf("hits that overflow are %d", got)
	}
}

// TestTop_memory: a key takes at most 512 bytes, in both minutes.
func TestTop_memory(t *testing.T) {
	const keys = 10_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	top := newTop(keys)
	for minute := range int64(3) {
		top.turn(minute + 1)
		for i := range uint64(3 * keys) {
			top.present.add(i*0x9e3779b97f4a7c15, 1)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	got := (after.HeapAlloc - before.HeapAlloc) / keys
	t.Logf("%d bytes a key", got)
	if got > 512 {
		t.Errorf("%d bytes a key, at most 512 are allowed", got)
	}
	runtime.KeepAlive(top)
}

func BenchmarkTop(b *testing.B) {
	rules := testRules(b)
	for _, keys := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			top := newTop(10_000)
			d := decision(b, rules, "shop", "user=12345678")
			var values []string
			for i := range keys {
				values = append(values, fmt.Sprint(10_000_000+i))
			}
			random := rand.New(rand.NewPCG(1, 2))
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				d.Request.Descriptors[0].Entries[0].Value = values[random.IntN(keys)]
				buf = top.note(d, buf)
			}
		})
	}
}

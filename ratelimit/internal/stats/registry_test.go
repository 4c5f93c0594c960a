package stats

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func dump(r *Registry, prefix string) string {
	var b strings.Builder
	r.Each(func(name string, kind Kind, value int64) {
		if strings.HasPrefix(name, prefix) && !strings.Contains(name, "_overflow") {
			fmt.Fprintf(&b, "%s %s %d\n", kind, name, value)
		}
	})
	return b.String()
}

func TestEach(t *testing.T) {
	r := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"ver": "1.2"}}})
	r.Counter("ratelimit.x", Tag{"code", "success"}).Add(2)
	r.Counter("ratelimit.x", Tag{"code", "success"}).Inc()
	r.Counter("ratelimit.a")
	r.CounterFunc("ratelimit.f", func() uint64 { return 7 })
	r.GaugeFunc("ratelimit.g", func() int64 { return -1 })
	r.Rule("d.k_v").OverLimit.Add(4)
	r.DomainNotFound("a|b").Inc()
	want := `counter ratelimit.a 0
counter ratelimit.f 7
gauge ratelimit.g -1
counter ratelimit.service.rate_limit.a_b.domain_not_found 1
counter ratelimit.service.rate_limit.d.k_v.near_limit 0
counter ratelimit.service.rate_limit.d.k_v.over_limit 4
counter ratelimit.service.rate_limit.d.k_v.over_limit_with_local_cache 0
counter ratelimit.service.rate_limit.d.k_v.shadow_mode 0
counter ratelimit.service.rate_limit.d.k_v.total_hits 0
counter ratelimit.service.rate_limit.d.k_v.within_limit 0
gauge ratelimit.stats.dynamic_keys 0
counter ratelimit.stats.timers_dropped 0
gauge ratelimit.stats.unknown_domains 1
counter ratelimit.x.__code=success 3
`
	if d := cmp.Diff(want, dump(r, "ratelimit.")); d != "" {
		t.Error(d)
	}
}

func TestRule_equalKeysShareOneHandle(t *testing.T) {
	r := NewRegistry(Options{})
	a := r.Rule("d.k_1:2")
	for _, key := range []string{"d.k_1:2", "d.k_1|2", "d.k_1_2"} {
		if r.Rule(key) != a {
			t.Errorf("Rule(%q) is another handle", key)
		}
		if r.DynamicRule([]byte(key)) != a {
			t.Errorf("DynamicRule(%q) is another handle", key)
		}
	}
	if r.Rule("d.k_1.2") == a {
		t.Error("another key shares the handle")
	}
}

func TestRetain(t *testing.T) {
	r := NewRegistry(Options{})
	kept, gone := r.Rule("d.kept"), r.Rule("d.gone")
	r.Retain([]*Rule{kept})
	gone.TotalHits.Inc() // a request that began before the reload
	if r.Rule("d.gone") != gone {
		t.Error("a handle that comes back in time is another one")
	}
	r.Retain([]*Rule{kept})
	for range forgetFlushes + 1 {
		r.forget()
	}
	if got := dump(r, RulePrefix+"d.gone"); got != "" {
		t.Errorf("still there:\n%s", got)
	}
	if r.Rule("d.kept") != kept {
		t.Error("a handle in use was forgotten")
	}
	if r.Rule("d.gone") == gone {
		t.Error("a forgotten handle came back with old counts")
	}
}

// Counters of unmatched descriptors outlive a reload with their domain, and go with it.
func TestNoMatch(t *testing.T) {
	r := NewRegistry(Options{})
	first := r.NoMatch([]string{"a", "b:c", "b|c", "bad\xff"})
	if len(first) != 4 || first["b:c"] != first["b|c"] || first["a"] == first["b:c"] {
		t.Errorf("counters %v", first)
	}
	first["a"].Add(2)
	first["b:c"].Add(3)
	second := r.NoMatch([]string{"a"})
	if second["a"] != first["a"] || len(second) != 1 {
		t.Errorf("counters %v after a reload, %v before", second, first)
	}
	first["b|c"].Inc() // a request that began before the reload
	want := "counter ratelimit.service.no_match.a 2\ncounter ratelimit.service.no_match.b_c 4\n" +
		"counter ratelimit.service.no_match.bad\\xff 0\n"
	if d := cmp.Diff(want, dump(r, NoMatchPrefix)); d != "" {
		t.Error(d)
	}
	for range forgetFlushes + 1 {
		r.forget()
	}
	if got := dump(r, NoMatchPrefix); got != "counter ratelimit.service.no_match.a 2\n" {
		t.Errorf("after the flushes there are\n%s", got)
	}
	if again := r.NoMatch([]string{"a", "b:c"}); again["a"] != first["a"] || again["b:c"].Value() != 0 {
		t.Error("a domain that came back has old counts, or one that stayed has none")
	}
}

func TestDynamic_isBounded(t *testing.T) {
	r := NewRegistry(Options{Settings: Settings{MaxDynamicKeys: 2, MaxUnknownDomains: 1}})
	known := r.DynamicRule([]byte("d.k_0"))
	r.DynamicRule([]byte("d.k_1"))
	r.DomainNotFound("x")
	over := r.DynamicRule([]byte("d.k_2"))
	if over != r.DynamicRule([]byte("d.k_3")) || over == known {
		t.Error("keys beyond the bound do not share the overflow series")
	}
	if r.DynamicRule([]byte("d.k_0")) != known {
		t.Error("a known key lost its series")
	}
	over.TotalHits.Add(2)
	r.DomainNotFound("y").Inc()
	f := func(name string, want int64) {
		t.Helper()
		r.Each(func(n string, _ Kind, v int64) {
			if n == name && v != want {
				t.Errorf("%s = %d, want %d", n, v, want)
			}
		})
	}
	f("ratelimit.stats.dynamic_keys", 2)
	f("ratelimit.stats.dynamic_keys_overflow", 2)
	f("ratelimit.stats.unknown_domains", 1)
	f("ratelimit.stats.unknown_domains_overflow", 1)
	f("ratelimit.service.rate_limit._overflow.total_hits", 2)
	f("ratelimit.service.rate_limit._overflow.domain_not_found", 1)
}

func TestDynamic_longKeysOverflow(t *testing.T) {
	r := NewRegistry(Options{})
	long := strings.Repeat("x", maxDynamicKey+1)
	if r.DynamicRule([]byte(long)) != r.dyn.overflowRule || r.DomainNotFound(long) != r.dyn.overflowUnknown {
		t.Error("a key that is too long got a series of its own")
	}
}

func TestDynamic_idleKeysExpire(t *testing.T) {
	r := NewRegistry(Options{Settings: Settings{MaxDynamicKeys: 2, DynamicIdle: time.Minute}})
	busy := r.DynamicRule([]byte("d.busy"))
	r.DynamicRule([]byte("d.idle"))
	now := time.Unix(1700000000, 0)
	for range 10 {
		busy.TotalHits.Inc()
		r.dyn.expire(now, r.idle)
		r.forget()
		now = now.Add(30 * time.Second)
	}
	if r.DynamicRule([]byte("d.busy")) != busy {
		t.Error("a busy key expired")
	}
	if got := dump(r, RulePrefix+"d.idle"); got != "" {
		t.Errorf("still there:\n%s", got)
	}
	if r.DynamicRule([]byte("d.new")) == r.dyn.overflowRule {
		t.Error("an expired key did not make room")
	}
}

func TestRegistry_concurrently(t *testing.T) {
	r := NewRegistry(Options{Settings: Settings{MaxDynamicKeys: 50, DynamicIdle: time.Nanosecond}})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				r.DynamicRule(fmt.Appendf(nil, "d.k_%d", (i*g)%80)).TotalHits.Inc()
				r.DomainNotFound(fmt.Sprint("dom", i%20)).Inc()
				r.Rule(fmt.Sprint("d.fixed", i%10)).TotalHits.Inc()
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			r.dyn.expire(time.Now(), r.idle)
			r.forget()
			r.Retain(nil)
			r.Each(func(string, Kind, int64) {})
		}
	})
	wg.Wait()
}

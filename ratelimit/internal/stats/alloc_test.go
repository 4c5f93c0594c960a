//go:build !race

package stats

import (
	"testing"
	"time"
)

func TestHotPathAllocatesNothing(t *testing.T) {
	r := NewRegistry(Options{})
	f := func(name string, call func()) {
		t.Helper()
		call()
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s allocates %v times per call, want 0", name, n)
		}
	}
	c, rule, timer := r.Counter("c"), r.Rule("d.k_v"), r.Timer("t")
	key := []byte("d.k_someone")
	unknown := []byte("d.k_")
	f("Counter.Add", func() { c.Add(3) })
	f("Rule", func() { rule.TotalHits.Add(1); rule.WithinLimit.Add(1) })
	f("DynamicRule", func() { r.DynamicRule(key).TotalHits.Inc() })
	f("DomainNotFound", func() { r.DomainNotFound("nowhere").Inc() })
	f("Timer.Observe, off", func() { timer.Observe(time.Millisecond) })
	r.timing.Store(true)
	f("Timer.Observe", func() { timer.Observe(time.Millisecond) })
	full := NewRegistry(Options{Settings: Settings{MaxDynamicKeys: 1}})
	full.DynamicRule(key)
	f("DynamicRule, overflow", func() { full.DynamicRule(unknown).TotalHits.Inc() })
}

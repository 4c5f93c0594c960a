//go:build !race

package limits

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// What stays of a rule when its text has been read: 100,000 are in the daemon's budget with all the
// garbage of a full load above them. Two thirds are the entry and the rule, the rest its counters.
func TestRulesAreSmall_Alloc(t *testing.T) {
	const rules, most = 20_000, 500 // bytes; 463 when measured
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range rules {
		fmt.Fprintf(&b,
			"  - key: path\n    value: /v1/items/%07d\n    rate_limit:\n      unit: hour\n      requests_per_unit: 5\n",
			i)
	}
	files := []File{{Name: "d.yaml", Text: []byte(b.String())}}
	b.Reset()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools held
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	registry := stats.NewRegistry(stats.Options{})
	r, _, err := Load(context.Background(), files, Options{Settings: Settings{NearRatio: 0.8}, Stats: registry})
	if err != nil {
		t.Fatal(err)
	}
	if each := (int64(heap()) - int64(before)) / rules; each > most {
		t.Errorf("a rule holds %d bytes, want at most %d", each, most)
	} else {
		t.Logf("a rule holds %d bytes", each)
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive(registry)
	runtime.KeepAlive(files)
}

// What runs per descriptor allocates nothing: finding the rule, whichever way it is found, both
// layouts of the counter key, and the metric key.
func TestFindAndKeys_Alloc(t *testing.T) {
	l := perMinute("1")
	list := "{key: user, value: u1, " + l + ", descriptors: [{key: path, detailed_metric: true, " + l + "}]}, " +
		"{key: p, value: /a/*/b*c, value_to_metric: true, " + l + "}, {key: s, value: s/*, share_threshold: true, " +
		l + "}, {key: any, " + l + "}, {key: ip, cidr: [10.0.0.0/8, '2001:db8::/32'], not_cidr: [10.9.0.0/16], " +
		"prefix_length: {v4: 24}, value_to_metric: true, " + l + "}, {key: ip, " + l + "}, {key: g, values: [a, b], " +
		"share_threshold: true, group: x, " + l +
		"}, {key: net, cidr: [10.0.0.0/8, 11.0.0.0/8], share_threshold: true, " + l + "}"
	for _, escaped := range []bool{false, true} {
		r := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8, KeyPrefix: "x:"}, EscapedKeys: escaped},
			inDomain(list), manyWildcards(200))
		buf := make([]byte, 0, 512)
		for _, descriptor := range []string{"(user,u1)(path,/a b)", "(p,/a/x/bxc)", "(s,s/1)", "(any,thing)",
			"(w,/api/v77/x)", "(ip,10.1.2.3)", "(ip,10.9.2.3)", "(ip,2001:DB8::1)", "(ip,::ffff:10.1.2.3)",
			"(ip,no address)", "(ip,10.1.2.3:80)", "(g,b)", "(net,11.1.2.3)"} {
			entries := entriesOf(t, descriptor)
			domain := "d"
			if descriptor[1] == 'w' {
				domain = "wild"
			}
			if n := testing.AllocsPerRun(100, func() {
				rule := r.Domain(domain).Find(entries)
				buf = r.AppendKey(buf[:0], rule, domain, entries, 1699999980)
				buf = rule.AppendMetricKey(buf[:0], domain, entries)
			}); n != 0 {
				t.Errorf("%s allocates %v times, want 0", descriptor, n)
			}
		}
		limited := mustLoad(t, Options{Settings: Settings{NearRatio: 0.8}, EscapedKeys: escaped},
			File{"shop.yaml", []byte(listed)})
		tenant := entriesOf(t, "(tenant,acme)")
		if n := testing.AllocsPerRun(100, func() {
			for limit := range limited.Domain("shop").Find(tenant).Limits() {
				start, _ := limit.Span(1700000000)
				buf = limited.AppendKey(buf[:0], limit, "shop", tenant, start)
				buf = limit.AppendLimitKey(buf[:0], "shop", tenant)
			}
		}); n != 0 {
			t.Errorf("a list of limits allocates %v times, want 0", n)
		}
		var rule Rule
		entries := entriesOf(t, "(a,b)(c,d)")
		if n := testing.AllocsPerRun(100, func() {
			r.Override(&rule, rls.Override{PerUnit: 5, Unit: rls.Hour})
			buf = r.AppendKey(buf[:0], &rule, "d", entries, 1699999980)
			buf = rule.AppendMetricKey(buf[:0], "d", entries)
		}); n != 0 {
			t.Errorf("an override allocates %v times, want 0", n)
		}
		if n := testing.AllocsPerRun(100, func() {
			if r.Domain("nobody") != nil || r.Domain("d").Find(entries) != nil {
				t.Error("found")
			}
		}); n != 0 {
			t.Errorf("finding nothing allocates %v times, want 0", n)
		}
	}
}

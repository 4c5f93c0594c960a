package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
)

// manyRules is a configuration of n rules as people write them: one per user, two levels deep.
func manyRules(n int) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n / 2 {
		fmt.Fprintf(&b,
			"  - key: user\n    value: u%d\n    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n",
			i, 10+i)
		fmt.Fprintf(&b,
			"    descriptors:\n      - key: path\n        rate_limit:\n          unit: second\n"+
				"          requests_per_unit: %d\n", 1+i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// flowRules is manyRules as people write them by hand, which readPlain reads too.
func flowRules(n int) File {
	var b strings.Builder
	b.WriteString("domain: edge # der Rand, für alle\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - key: user\n    value: 'u%d'\n    rate_limit: {unit: minute, requests_per_unit: %d}\n",
			i, 10+i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// widerRules is flowRules over lines and with text outside ASCII.
func widerRules(n int) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors: [\n")
	for i := range n {
		fmt.Fprintf(&b, "  {key: benützer, value: \"u%d\",\n   rate_limit: {unit: minute, requests_per_unit: %d}},\n",
			i, 10+i)
	}
	b.WriteString("]\n")
	return File{"edge.yaml", []byte(b.String())}
}

// lineRules has each rule on a line.
func lineRules(n int) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {key: user, value: u%d, rate_limit: {unit: minute, requests_per_unit: %d}}\n", i, 10+i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// limitRules is lineRules with other limits.
func limitRules(n int, limit string) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {key: user, value: u%d, "+limit+"}\n", i, 10+i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// BenchmarkSpan measures the computation of a window: a calendar's and a fixed one.
func BenchmarkSpan(b *testing.B) {
	for name, limit := range map[string]string{"fixed": "", "calendar": ", calendar: Europe/Berlin"} {
		b.Run(name, func(b *testing.B) {
			rule := mustLoad(b, Options{},
				inDomain("{key: k, rate_limit: {unit: day, requests_per_unit: 1"+limit+"}}")).
				Domain("d").Find([]rls.Entry{{Key: "k", Value: "v"}})
			b.ReportAllocs()
			for b.Loop() {
				if _, end := rule.Span(1700000000); end <= 1700000000 {
					b.Fatal("the window is over")
				}
			}
		})
	}
}

// richRules is written so that the library must read it.
func richRules(n int) File {
	f := manyRules(n)
	f.Text = append(f.Text, "  - key: &anchor a\n"...)
	return f
}

// valuesRules is n rules in lists of 1,000 values.
func valuesRules(n int) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n {
		if i%1000 == 0 {
			fmt.Fprintf(&b, "  - key: user\n    rate_limit: {unit: minute, requests_per_unit: %d}\n    values:\n", 10+i)
		}
		fmt.Fprintf(&b, "    - u%d\n", i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// cidrRules is n prefixes in lists of 10,000, with a counter for each prefix or for each address.
func cidrRules(n int, shared bool) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n {
		if i%10_000 == 0 {
			fmt.Fprintf(&b,
				"  - key: ip\n    share_threshold: %v\n    rate_limit: {unit: minute, requests_per_unit: %d}\n"+
					"    cidr:\n",
				shared, 10+i)
		}
		fmt.Fprintf(&b, "    - %d.%d.%d.0/%d\n", 1+i%223, i/223%256, i*7%256, 24+i%8)
	}
	return File{"edge.yaml", []byte(b.String())}
}

// networkRules is n entries with a prefix each, or with a value like it.
func networkRules(n int, field string) File {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - key: ip\n    "+field+
			"\n    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n",
			1+i%223, i/223%256, i*7%256, 24+i%8, 10+i)
	}
	return File{"edge.yaml", []byte(b.String())}
}

func mustLoad(tb testing.TB, o Options, files ...File) *Rules {
	tb.Helper()
	r, _, err := Load(context.Background(), files, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func BenchmarkLoad(b *testing.B) {
	for name, f := range map[string]File{"100": manyRules(100), "10000": manyRules(10_000),
		"10000braces": flowRules(10_000), "10000lines": lineRules(10_000), "10000wider": widerRules(10_000),
		"10000sliding": limitRules(10_000,
			"rate_limit: {unit: minute, requests_per_unit: %d, algorithm: sliding_window}"),
		"10000bucket": limitRules(10_000,
			"rate_limit: {unit: minute, requests_per_unit: %d, algorithm: token_bucket, burst: 50000}"),
		"10000calendar": limitRules(10_000,
			"rate_limit: {unit: month, requests_per_unit: %d, calendar: Europe/Berlin}"),
		"10000lists": limitRules(10_000,
			"rate_limits: [{unit: minute, requests_per_unit: %d}, {unit: hour, requests_per_unit: 100000}]"),
		"10000values": valuesRules(10_000), "10000prefixes": cidrRules(10_000, false),
		"10000prefixesShared": cidrRules(10_000, true), "10000networks": networkRules(10_000, "cidr: [%d.%d.%d.0/%d]"),
		"10000exact":  networkRules(10_000, "value: %d.%d.%d.0/%d"),
		"100000wider": widerRules(100_000), "10000library": richRules(10_000)} {
		b.Run(name, func(b *testing.B) {
			reg := stats.NewRegistry(stats.Options{})
			b.SetBytes(int64(len(f.Text)))
			b.ReportAllocs()
			for b.Loop() {
				mustLoad(b, Options{Settings: Settings{NearRatio: 0.8}, Stats: reg}, f)
			}
		})
	}
}

// BenchmarkMemory reports the heap that 100,000 rules hold once loaded.
func BenchmarkMemory(b *testing.B) {
	f := manyRules(100_000)
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		reg := stats.NewRegistry(stats.Options{})
		r := mustLoad(b, Options{Settings: Settings{NearRatio: 0.8}, Stats: reg}, f)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB")
		runtime.KeepAlive(r)
		runtime.KeepAlive(reg)
	}
}

var twoEntries = []rls.Entry{{Key: "user", Value: "u7"}, {Key: "path", Value: "/a"}}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{2, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := mustLoad(b, Options{Settings: Settings{NearRatio: 0.8}}, manyRules(max(n, 16)))
			// Many users, so that the trie does not sit in the processor's cache by itself.
			asked := make([][]rls.Entry, 1<<12)
			for i := range asked {
				asked[i] = []rls.Entry{{Key: "user", Value: fmt.Sprintf("u%d", rand.IntN(max(n, 16)/2))},
					{Key: "path", Value: "/a"}}
			}
			for i := 0; b.Loop(); i++ {
				d := r.Domain("edge")
				if d.Find(asked[i&(len(asked)-1)]) == nil {
					b.Fatal("no rule found")
				}
			}
		})
	}
}

func BenchmarkAppendKey(b *testing.B) {
	for _, escaped := range []bool{false, true} {
		b.Run(map[bool]string{false: "default", true: "escaped"}[escaped], func(b *testing.B) {
			r := mustLoad(b, Options{Settings: Settings{NearRatio: 0.8}, EscapedKeys: escaped}, manyRules(100))
			rule := r.Domain("edge").Find(twoEntries)
			var key []byte
			for b.Loop() {
				key = r.AppendKey(key[:0], rule, "edge", twoEntries, 1699999980)
			}
		})
	}
}

// manyWildcards is a domain whose only key has n wildcards.
func manyWildcards(n int) File {
	var b strings.Builder
	b.WriteString("domain: wild\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- key: w\n  value: /api/v%d/*\n  rate_limit:\n    unit: minute\n    requests_per_unit: %d\n",
			i, i)
	}
	return File{"wild.yaml", []byte(b.String())}
}

// BenchmarkPatterns is the measurement behind scanPatterns: the last wildcard matches.
func BenchmarkPatterns(b *testing.B) {
	for _, n := range []int{4, 8, 16, 32, 300} {
		var all []*pattern
		for i := range n {
			_, p := parseValue(fmt.Sprintf("/api/v%d/*", i))
			all = append(all, p)
		}
		value := fmt.Sprintf("/api/v%d/x", n-1)
		scan := patterns{all: all}
		for name, ps := range map[string]*patterns{"scan": &scan, "index": new(buildIndex(all))} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for b.Loop() {
					if ps.first(value) != n-1 {
						b.Fatal("not found")
					}
				}
			})
		}
	}
}

// BenchmarkLevel is the measurement behind scanValues.
func BenchmarkLevel(b *testing.B) {
	for _, n := range []int{2, 4, 8, 12, 16} {
		l := level{}
		many := map[string]target{}
		var values []string
		for i := range n {
			v := fmt.Sprintf("value-%d", i)
			values = append(values, v)
			s := &step{value: v}
			l.few = append(l.few, choice{v, s.target()})
			many[v] = s.target()
		}
		mapped := level{many: many}
		for name, l := range map[string]*level{"scan": &l, "map": &mapped} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					if l.exact(values[i%n]).step == nil {
						b.Fatal("not found")
					}
				}
			})
		}
	}
}

// BenchmarkNetworks looks values up in a level of 10,000 prefixes, next to the same level with exact values only.
func BenchmarkNetworks(b *testing.B) {
	const n = 10_000
	var exact, networks strings.Builder
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("%d.%d.%d.0", 1+i%223, i/223%256, rand.IntN(256))
		fmt.Fprintf(&exact, "{key: ip, value: %s, %s}, ", values[i], perMinute("1"))
		fmt.Fprintf(&networks, "%s/%d, ", values[i], 24+i%8)
	}
	rules := map[string]*Rules{
		"exact": mustLoad(b, Options{}, inDomain(exact.String()+"{key: ip, "+perMinute("1")+"}")),
		"networks": mustLoad(b, Options{},
			inDomain("{key: ip, cidr: ["+networks.String()+"], "+perMinute("1")+"}, {key: ip, "+perMinute("1")+"}")),
		"both": mustLoad(b, Options{},
			inDomain(exact.String()+"{key: ip, cidr: ["+networks.String()+"], "+perMinute("1")+
				"}, {key: ip, "+perMinute("1")+"}")),
	}
	asked := make([][]rls.Entry, 1<<12)
	other := make([][]rls.Entry, 1<<12)
	for i := range asked {
		asked[i] = []rls.Entry{{Key: "ip", Value: values[rand.IntN(n)]}}
		other[i] = []rls.Entry{{Key: "ip", Value: fmt.Sprintf("user-%d", i)}}
	}
	for name, r := range rules {
		for kind, asked := range map[string][][]rls.Entry{"address": asked, "other": other} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				d := r.Domain("d")
				for i := 0; b.Loop(); i++ {
					if d.Find(asked[i&(len(asked)-1)]) == nil {
						b.Fatal("no rule found")
					}
				}
			})
		}
	}
	for name, r := range rules {
		b.Run("key/"+name, func(b *testing.B) {
			d, key := r.Domain("d"), make([]byte, 0, 100)
			for i := 0; b.Loop(); i++ {
				e := asked[i&(len(asked)-1)]
				key = r.AppendKey(key[:0], d.Find(e), "d", e, 1699999980)
			}
		})
	}
}

//go:build linux

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse/shared/chaos"
)

// TestRequestsRandom reads the requests with the generated types and writes them down as a scenario does.
func TestRequestsRandom(t *testing.T) {
	n := chaos.Runs(2_000)
	for name, s := range scenarios {
		e := newEncoder(s)
		digits := fmt.Sprintf(`(\d{%d})`, e.digits)
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(s.request), "#", digits) + "$")
		seen := map[string]bool{}
		for range n {
			var m ratelimitv3.RateLimitRequest
			if err := proto.Unmarshal(e.next()[5:], &m); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if m.Domain != domain {
				t.Fatalf("%s: domain %q, want %q", name, m.Domain, domain)
			}
			var b strings.Builder
			for i, d := range m.Descriptors {
				if i > 0 {
					b.WriteByte('|')
				}
				for _, entry := range d.Entries {
					b.WriteString("(" + entry.Key + "," + entry.Value + ")")
				}
			}
			parts := want.FindStringSubmatch(b.String())
			if parts == nil {
				t.Fatalf("%s: request %s, want %s", name, b.String(), s.request)
			}
			seen[parts[len(parts)-1]] = true
		}
		// 2,000 draws of 10,000 numbers meet some 1,800 different ones.
		if want := min(s.keys, n/2); len(seen) < want && !s.zipf {
			t.Errorf("%s: %d different numbers in %d requests, want at least %d", name, len(seen), n, want)
		}
	}
}

func TestZipf(t *testing.T) {
	next := numbers(scenarios["zipf"])
	counts := map[uint32]int{}
	for range 100_000 {
		n := next()
		if n >= 1_000_000 {
			t.Fatalf("number %d, want less than a million", n)
		}
		counts[n]++
	}
	if counts[0] < 5_000 || len(counts) < 10_000 {
		t.Errorf("the most frequent number came %d times, %d different ones: not a Zipf distribution", counts[0],
			len(counts))
	}
}

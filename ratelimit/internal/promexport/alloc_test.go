//go:build !race

package promexport

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"
)

// TestManyRules_Allocations: 100,000 rules make 400,000 series, and a scrape needs memory for the list of rules and
// little else.
func TestManyRules_Allocations(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	r, p := rig(t, "", nil)
	const n = 100_000
	for i := range n {
		r.Rule(fmt.Sprintf("domain.tenant_t%d.path_x", i)).TotalHits.Add(uint64(i + 1))
	}
	w := &discard{header: http.Header{}}
	request := httptest.NewRequest("GET", "/metrics", nil)
	p.ServeHTTP(w, request)
	w.lines = 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	p.ServeHTTP(w, request)
	runtime.ReadMemStats(&after)
	took, bytes := time.Since(start), after.TotalAlloc-before.TotalAlloc
	t.Logf("%d lines in %v, %d bytes allocated", w.lines, took, bytes)
	if w.lines < 4*n {
		t.Errorf("%d lines", w.lines)
	}
	if bytes > 12<<20 {
		t.Errorf("%d bytes were allocated, want at most 12 MiB", bytes)
	}
}

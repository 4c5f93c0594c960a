//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
)

// allocations counts what the daemon's heap gets for each call, with header blocks as Envoy sends them. The
// daemon's background counts too: hence not always none.
func (s *suite) allocations(ctx context.Context) error {
	for _, name := range []string{"memory", "redis"} {
		var counts []float64
		for range s.rounds {
			n, err := allocationsPerCall(ctx, s.targets[name], 2*s.time)
			if err != nil {
				return err
			}
			counts = append(counts, n)
		}
		s.report.atMost(.01, "", "single, "+name+": allocations a call", counts, "0 but for the background's")
	}
	return nil
}

func allocationsPerCall(ctx context.Context, t *target, run time.Duration) (float64, error) {
	var counts []int64
	page, err := pageAllocations(ctx, t.debug)
	if err != nil {
		return 0, err
	}
	l := load{
		addr: t.addr, traffic: grpcTraffic{scenario: scenarios["single"], streams: 64, literalPath: true}, conns: 4,
		warm: 300 * time.Millisecond, run: run,
		mark: func() error {
			n, err := mallocs(ctx, t.debug)
			counts = append(counts, n)
			return err
		},
	}
	r, err := l.drive()
	if err != nil {
		return 0, fmt.Errorf("allocations of %s: %w", t.name, err)
	}
	return float64(counts[1]-counts[0]-page) / float64(r.answered()), nil
}

// pageAllocations is what asking for the count costs: the least of several times.
func pageAllocations(ctx context.Context, debug string) (least int64, err error) {
	least = math.MaxInt64
	before, err := mallocs(ctx, debug)
	for range 5 {
		if err != nil {
			return 0, err
		}
		var now int64
		now, err = mallocs(ctx, debug)
		least, before = min(least, now-before), now
	}
	return least, err
}

// mallocs is how many objects a daemon has allocated since it started, from its debug listener.
func mallocs(ctx context.Context, debug string) (n int64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+debug+"/debug/pprof/heap?debug=1", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(page, []byte("\n# Mallocs = "))
	if _, err := fmt.Sscan(string(after), &n); !found || err != nil {
		return 0, fmt.Errorf("%s has no count of allocations: %.200q", r.URL, page)
	}
	return n, nil
}

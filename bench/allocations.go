//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	var page int64 // what asking for the count costs, which the second reading counts
	read := func() (m reading, err error) {
		before, err := mallocs(ctx, t.debug)
		if m.commands = before; err == nil && page == 0 {
			m.commands, err = mallocs(ctx, t.debug)
			page = m.commands - before
			m.commands += page
		}
		return m, err
	}
	l := load{
		addr: t.addr, traffic: grpcTraffic{scenario: scenarios["single"], streams: 64, literalPath: true}, conns: 4,
		warm: 300 * time.Millisecond, run: run,
	}
	counted, err := l.measure(read)
	return counted.commands, err
}

// mallocs is how many objects a daemon has allocated since it started, from its debug listener.
func mallocs(ctx context.Context, debug string) (n int64, err error) {
	body, err := fetch(ctx, http.DefaultClient, "http://"+debug+"/debug/pprof/heap?debug=1", "")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	page, err := io.ReadAll(body)
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(page, []byte("\n# Mallocs = "))
	if _, err := fmt.Sscan(string(after), &n); !found || err != nil {
		return 0, fmt.Errorf("%s has no count of allocations: %.200q", debug, page)
	}
	return n, nil
}

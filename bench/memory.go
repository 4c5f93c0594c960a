//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// memory measures the daemon's resident memory (RSS) in several situations, with a new process for each.
func (s *suite) memory(ctx context.Context) error {
	single := load{traffic: grpcTraffic{scenario: scenarios["single"], streams: 64}, conns: 4, run: 4 * s.time}
	fill := scenarios["fill"]
	keys := load{traffic: grpcTraffic{scenario: fill, streams: 64}, conns: 4, calls: fill.keys, run: time.Minute}
	rules := ruleText(0, 1)
	for _, r := range []struct {
		name     string
		limit    float64
		rules    []byte
		load     load
		settings []string
	}{
		{"idle", 20, rules, load{}, nil},
		{"full load", 48, rules, single, nil},
		{"full load, Redis", 48, rules, single, []string{"BACKEND_TYPE=kvstore", "KVSTORE_URL=" + s.redis.Addr()}},
		{"100k rules", 150, ruleText(100_000, 1), single, nil},
		{"1M live keys", 200, rules, keys, []string{"MEMORY_MAX_KEYS=2000000"}},
	} {
		if err := s.fresh(ctx, r.name, r.rules, func(t *target, _ time.Duration) error {
			time.Sleep(500 * time.Millisecond) // until the garbage of the start has been collected
			if r.load.addr = t.addr; r.load.run > 0 {
				if _, err := r.load.measure(t.read); err != nil {
					return err
				}
			}
			return s.reportRSS(t, r.limit, "RSS, "+r.name, "")
		}, r.settings...); err != nil {
			return err
		}
	}
	return nil
}

// reportRSS compares the present resident memory of a target with a budget.
func (s *suite) reportRSS(t *target, limit float64, what, note string) error {
	u, err := readUsage(t.process.PID())
	if err != nil {
		return err
	}
	s.report.atMost(limit, " MiB", what, []float64{float64(u.rss) / mib},
		fmt.Sprintf("peak %.1f%s", float64(u.peak)/mib, note))
	return nil
}

// numberAfter returns the number that follows label in a page.
func numberAfter(page []byte, label string) (n int64, err error) {
	_, after, found := bytes.Cut(page, []byte(label))
	if _, err := fmt.Sscan(string(after), &n); !found || err != nil {
		return 0, fmt.Errorf("no number after %q: %.200q", label, page)
	}
	return n, nil
}

const (
	heldConnections = 10_000
	burstBytes      = 64 << 10
)

// connections measures the daemon's resident memory with many open connections, each of which has sent a burst of
// calls.
func (s *suite) connections(ctx context.Context) error {
	return s.fresh(ctx, "connections", ruleText(0, 1), func(t *target, _ time.Duration) error {
		calls, open := 0, []int{}
		defer func() {
			for _, fd := range open {
				unix.Close(fd)
			}
		}()
		for held := range heldConnections {
			if err := ctx.Err(); err != nil {
				return err
			}
			var err error
			if calls, err = burst(t.addr, func(fd int) { open = append(open, fd) }); err != nil {
				return fmt.Errorf("connection %d: %w", held+1, err)
			}
		}
		time.Sleep(500 * time.Millisecond) // until the memory of the last bursts has been given back
		return s.reportRSS(t, 160, fmt.Sprintf("RSS, %d connections after a burst of %d KiB each", heldConnections,
			burstBytes>>10), fmt.Sprintf("; %d calls each", calls))
	})
}

// burst sends, on one connection and all at once, as many calls as fit into burstBytes together with the HTTP/2
// preface. It calls hold with the connection's file descriptor when all calls have been answered with OK.
func burst(addr string, hold func(fd int)) (calls int, err error) {
	t := grpcTraffic{scenario: scenarios["single"], literalPath: true}
	first, later := headerBlocks(addr, "", true)
	calls = (burstBytes - len(first)) / (9 + len(later) + 9 + len(newEncoder(t.scenario).message))
	t.streams = calls
	r, err := load{addr: addr, traffic: t, conns: 1, calls: calls, run: 20 * time.Second, hold: hold}.drive()
	if err == nil && r.ok < calls {
		err = fmt.Errorf("%d of %d calls were answered OK", r.ok, calls)
	}
	return calls, err
}

// allocations measures how many heap allocations the daemon makes for each call. Calls have header blocks as Envoy
// sends them. The daemon's work in the background allocates, too, so the figure is not always 0.
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
	var page int64 // allocations caused by reading the count, which the second reading includes
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

// mallocs returns the number of objects that a daemon has allocated since it started, which it reads from the daemon's
// debug port.
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
	return numberAfter(page, "\n# Mallocs = ")
}

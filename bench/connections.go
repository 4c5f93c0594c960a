//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	heldConnections = 10_000
	burstBytes      = 64 << 10
)

// connections is the daemon's RSS with many connections open, each of which has sent a burst of calls.
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
		time.Sleep(500 * time.Millisecond) // what the last bursts left behind is given back
		return s.reportRSS(t, 160, fmt.Sprintf("RSS, %d connections after a burst of %d KiB each", heldConnections,
			burstBytes>>10), fmt.Sprintf("; %d calls each", calls))
	})
}

// burst sends as many calls at once as fit, with the preface, in burstBytes, on one connection, which hold gets when each
// has been answered OK.
func burst(addr string, hold func(fd int)) (calls int, err error) {
	t := grpcTraffic{scenario: scenarios["single"], literalPath: true}
	first, later := headerBlocks(addr, "", true)
	calls = (burstBytes - len(first)) / (9 + len(later) + 9 + 5 + len(newEncoder(t.scenario, 1).message))
	t.streams = calls
	r, err := load{addr: addr, traffic: t, conns: 1, calls: calls, run: 20 * time.Second, hold: hold}.drive()
	if err == nil && r.ok < calls {
		err = fmt.Errorf("%d of %d calls were answered OK", r.ok, calls)
	}
	return calls, err
}

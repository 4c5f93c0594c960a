//go:build linux

package main

import (
	"context"
	"errors"
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
		calls := 0
		for held := range heldConnections {
			if err := ctx.Err(); err != nil {
				return err
			}
			c, err := dial(t.addr, "", true)
			if err == nil {
				connection := c.socket // without the client's buffers
				defer connection.close()
				calls, err = c.burst()
			}
			if err != nil {
				return fmt.Errorf("connection %d: %w", held+1, err)
			}
		}
		time.Sleep(500 * time.Millisecond) // what the last bursts left behind is given back
		return s.reportRSS(t, 160, fmt.Sprintf("RSS, %d connections after a burst of %d KiB each", heldConnections,
			burstBytes>>10), fmt.Sprintf("; %d calls each", calls))
	})
}

// burst sends as many calls at once as fit, with the preface, in burstBytes, and reads until each has been answered OK.
func (c *client) burst() (calls int, err error) {
	e := newEncoder(scenarios["single"], 1)
	for {
		message := e.next()
		if len(c.out)+9+len(c.headers)+9+5+len(message) > burstBytes {
			break
		}
		c.begin(message, 0, false)
		calls++
	}
	answered, ok := 0, 0
	polled := []unix.PollFd{{Fd: int32(c.fd)}}
	for answered < calls {
		if err := c.flush(); err != nil {
			return calls, err
		}
		polled[0].Events = c.events()
		ready, err := wait(polled, int64(20*time.Second))
		if err == nil && !ready {
			err = errors.New("no answer in time")
		}
		if err == nil {
			err = c.receive(func(done *call) {
				answered++
				if !done.bad && done.overall == byte(okCode) {
					ok++
				}
			})
		}
		if err != nil {
			return calls, fmt.Errorf("%d of %d calls answered: %w", answered, calls, err)
		}
	}
	if ok < calls {
		return calls, fmt.Errorf("%d of %d calls were answered OK", ok, calls)
	}
	return calls, nil
}

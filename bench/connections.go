//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	heldConnections = 10_000
	burstBytes      = 64 << 10
)

// connections is the daemon's RSS with many connections open, each of which has sent a burst of calls.
func (s *suite) connections(ctx context.Context) error {
	return s.fresh(ctx, "connections", ruleText(0, 1), func(t *target, _ time.Duration) error {
		burst, calls := callBurst(t.addr)
		var held []net.Conn
		defer func() {
			for _, c := range held {
				c.Close()
			}
		}()
		answers := bufio.NewReaderSize(nil, 64<<10)
		for range heldConnections {
			if err := ctx.Err(); err != nil {
				return err
			}
			c, err := net.Dial("tcp4", t.addr)
			if err != nil {
				return fmt.Errorf("connection %d: %w", len(held)+1, err)
			}
			held = append(held, c)
			if err := sendBurst(c, answers, burst, calls); err != nil {
				return fmt.Errorf("connection %d: %w", len(held), err)
			}
		}
		time.Sleep(500 * time.Millisecond) // what the last bursts left behind is given back
		u, err := readUsage(t.process.PID())
		if err != nil {
			return err
		}
		peak, err := peakRSS(t.process.PID())
		s.report.atMost(160, " MiB", fmt.Sprintf("RSS, %d connections after a burst of %d KiB each", heldConnections,
			burstBytes>>10),
			[]float64{float64(u.rss) / mib}, fmt.Sprintf("peak %.1f; %d calls each", float64(peak)/mib, calls))
		return err
	})
}

// callBurst is a connection's preface and as many calls as fit, in all burstBytes at the most.
func callBurst(authority string) (burst []byte, calls int) {
	headers, later := headerBlocks(authority, "", true)
	burst = append(burst, preface...)
	burst = appendFrame(burst, frameSettings, 0, 0, nil)
	burst = appendFrame(burst, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, ourWin))
	for e := newEncoder(scenarios["single"], 1); ; calls++ {
		message := e.next()
		if len(burst)+9+len(headers)+9+5+len(message) > burstBytes {
			return burst, calls
		}
		id := uint32(2*calls + 1)
		burst = appendFrame(burst, frameHeaders, flagEndHeaders, id, headers)
		headers = later
		prefixed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
		burst = appendFrame(burst, frameData, flagEndStream, id, append(prefixed, message...))
	}
}

// sendBurst sends all calls and reads until each has been answered OK. answers is scratch.
func sendBurst(c net.Conn, answers *bufio.Reader, burst []byte, calls int) error {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(burst)
		sent <- err
	}()
	answers.Reset(c)
	err := readAnswers(answers, calls)
	if err != nil {
		c.Close() // the writer gives up
	}
	return errors.Join(err, <-sent)
}

// readAnswers reads frames until so many streams have ended, each after a message whose verdict is OK.
func readAnswers(from *bufio.Reader, calls int) error {
	var head [9]byte
	for ended, ok := 0, 0; ended < calls || ok < calls; {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return fmt.Errorf("%d of %d calls answered: %w", ended, calls, err)
		}
		size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		switch kind, flags := head[3], head[4]; kind {
		case frameReset, frameGoAway:
			return fmt.Errorf("the server sent a frame of type %d after %d of %d calls", kind, ended, calls)
		case frameHeaders:
			if flags&flagEndStream != 0 {
				ended++
			}
		case frameData:
			// As in client.streamFrame: overall_code comes first.
			message, err := from.Peek(min(size, 7))
			if err != nil {
				return err
			}
			if len(message) == 7 && message[5] == 8 && message[6] == byte(okCode) {
				ok++
			}
		}
		if _, err := from.Discard(size); err != nil {
			return err
		}
		if ended == calls && ok < calls {
			return fmt.Errorf("%d of %d calls were answered OK", ok, calls)
		}
	}
	return nil
}

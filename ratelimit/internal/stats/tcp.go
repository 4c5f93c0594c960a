package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// These constants bound the TCP transport: the time for connecting, the pause between two tries, the time for writing
// one chunk, and the sizes of a chunk and of the queue. docs/statistics.md lists them.
const (
	tcpDial      = 1500 * time.Millisecond
	tcpReconnect = 3 * time.Second
	tcpWrite     = time.Second
	tcpChunk     = 64 << 10
	tcpQueue     = 4 << 20
)

var (
	errAway = errors.New("stats: statsd is not connected")
	errFull = errors.New("stats: the queue to statsd is full")
)

// tcp is a statsd.Sender that uses one connection. While connected, Send appends to a bounded queue; otherwise it
// refuses the line. One goroutine connects and writes. Lines that were not sent when a connection breaks are sent on
// the next one, beginning with the whole of the line that was cut.
type tcp struct {
	addr      string
	log       *slog.Logger
	connected atomic.Bool
	wake      chan struct{}
	hurry     chan chan<- struct{} // requests a try to connect at once; run answers when the try has ended
	stop      context.CancelFunc   // ends connecting and waiting
	closing   chan struct{}
	done      chan struct{}

	mu    sync.Mutex
	queue []byte // whole lines that are not being written yet
}

func newTCP(addr string, log *slog.Logger) *tcp {
	ctx, stop := context.WithCancel(context.Background())
	s := &tcp{
		addr: addr, log: log, stop: stop,
		wake: make(chan struct{}, 1), hurry: make(chan chan<- struct{}), closing: make(chan struct{}),
		done: make(chan struct{}),
	}
	go s.run(ctx)
	return s
}

func (s *tcp) ready() bool { return s.connected.Load() }

// Send implements statsd.Sender. line is one line without its newline.
func (s *tcp) Send(line []byte) (int, error) {
	if !s.connected.Load() {
		return 0, errAway
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)+len(line) >= tcpQueue {
		return 0, errFull
	}
	s.queue = append(append(s.queue, line...), '\n')
	return len(line), nil
}

func (s *tcp) flush() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close implements statsd.Sender. It does not send the queued lines.
func (s *tcp) Close() error {
	s.stop()
	<-s.done
	return nil
}

// awake connects at once if the connection is down, without waiting for the end of the pause between two tries.
func (s *tcp) awake(ctx context.Context) bool {
	tried := make(chan struct{}, 1)
	for !s.ready() {
		select {
		case s.hurry <- tried: // run was in the pause before its next try
			select {
			case <-tried:
			case <-ctx.Done():
			}
			return s.ready()
		case <-time.After(time.Millisecond): // run is connecting, or has just connected
			if ctx.Err() != nil {
				return s.ready()
			}
		}
	}
	return true
}

func (s *tcp) drain(ctx context.Context) error {
	close(s.closing)
	if !s.connected.Load() {
		return s.Close()
	}
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	s.Close()
	if n := s.queued(); n > 0 {
		return fmt.Errorf("stats: %d bytes for statsd were not taken", n)
	}
	return nil
}

func (s *tcp) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// run connects, writes until the connection breaks, pauses, and connects again. Only the first failure of an outage is
// logged.
func (s *tcp) run(ctx context.Context) {
	defer close(s.done)
	told := false
	var tried chan<- struct{} // to notify awake, which has requested a try
	answer := func() {
		if tried != nil {
			tried <- struct{}{}
			tried = nil
		}
	}
	for {
		conn, err := (&net.Dialer{Timeout: tcpDial}).DialContext(ctx, "tcp", s.addr)
		if err == nil {
			s.log.Info("stats: connected to statsd", "address", s.addr)
			told = false
			s.connected.Store(true)
			answer()
			err = s.write(ctx, conn)
		}
		answer()
		if ctx.Err() != nil || err == nil {
			return
		}
		if !told {
			s.log.Warn("stats: statsd is not reachable; counts are kept, times are not", "address", s.addr,
				"retry", tcpReconnect, "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-s.closing:
			return
		case tried = <-s.hurry:
		case <-time.After(tcpReconnect):
		}
	}
}

// write sends the queue whenever s.wake is signalled. It returns nil after s.closing is closed and everything is sent,
// otherwise the reason why the connection can no longer be used.
func (s *tcp) write(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	// Read from the connection: statsd sends nothing, so a read that ends means that statsd has closed the connection.
	// Without reading, the first lines written after a restart of statsd would be lost.
	broken := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		for err == nil {
			_, err = conn.Read(make([]byte, 512))
		}
		s.connected.Store(false)
		broken <- err
	}()
	defer func() {
		s.connected.Store(false)
		conn.Close()
		<-broken
	}()

	last := false
	for {
		if err := s.empty(conn); err != nil {
			return err
		}
		if last {
			return nil
		}
		select {
		case err := <-broken:
			broken <- err
			return fmt.Errorf("stats: statsd hung up: %w", err)
		case <-s.closing:
			last = true
		case <-s.wake:
		case <-time.After(time.Second): // queued lines are sent at least every second
		}
	}
}

// empty writes all queued lines, in chunks with a deadline each. If a write fails, empty puts the lines that were not
// written back into the queue.
func (s *tcp) empty(conn net.Conn) error {
	s.mu.Lock()
	lines := s.queue
	s.queue = nil
	s.mu.Unlock()
	for rest := lines; len(rest) > 0; {
		conn.SetWriteDeadline(time.Now().Add(tcpWrite))
		n, err := conn.Write(rest[:min(len(rest), tcpChunk)])
		if err != nil {
			// Begin with the whole of the line that was cut off: the server drops the part of the line that it has
			// received.
			at := len(lines) - len(rest) + n
			at = bytes.LastIndexByte(lines[:at], '\n') + 1
			s.mu.Lock()
			s.queue = append(bytes.Clone(lines[at:]), s.queue...)
			s.mu.Unlock()
			return fmt.Errorf("stats: write to statsd: %w", err)
		}
		rest = rest[n:]
	}
	s.mu.Lock()
	if s.queue == nil && cap(lines) <= tcpQueue/4 {
		s.queue = lines[:0] // reuse the memory
	}
	s.mu.Unlock()
	return nil
}

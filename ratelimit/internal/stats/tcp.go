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

// Metrics of the TCP transport, listed in docs/statistics.md.
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

// tcp is a statsd.Sender over one connection. Send appends to a bounded queue while there is a connection and refuses
// otherwise; one goroutine dials and writes. Lines that a broken connection had not taken are sent on the next one,
// from the start of the line that was cut.
type tcp struct {
	addr      string
	log       *slog.Logger
	connected atomic.Bool
	wake      chan struct{}
	hurry     chan chan<- struct{} // requests a try now; answered when the try has ended
	stop      context.CancelFunc   // ends dialling and waiting
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

// Send implements statsd.Sender: one line, without its newline.
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

// Close implements statsd.Sender. Queued lines are not sent.
func (s *tcp) Close() error {
	s.stop()
	<-s.done
	return nil
}

// awake dials at once if the connection is down, instead of at the end of the pause.
func (s *tcp) awake(ctx context.Context) bool {
	tried := make(chan struct{}, 1)
	for !s.ready() {
		select {
		case s.hurry <- tried: // run is waiting before its next dial
			select {
			case <-tried:
			case <-ctx.Done():
			}
			return s.ready()
		case <-time.After(time.Millisecond): // run is dialling, or has just connected
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

// run dials, writes until the connection breaks, waits, and dials again. Only the first failure
// of an outage is logged.
func (s *tcp) run(ctx context.Context) {
	defer close(s.done)
	told := false
	var tried chan<- struct{} // the request of awake
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

// write sends the queue whenever it is woken. It returns nil when all is sent after closing, otherwise why the
// connection cannot be used any longer.
func (s *tcp) write(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	// A statsd sends nothing; a read that ends means that it has closed the connection. Without this read, the first
	// lines after its restart would be lost.
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
		case <-time.After(time.Second): // lines are sent at least every second
		}
	}
}

// empty writes all queued lines, in chunks with a deadline each, and puts back the lines that were not taken.
func (s *tcp) empty(conn net.Conn) error {
	s.mu.Lock()
	lines := s.queue
	s.queue = nil
	s.mu.Unlock()
	for rest := lines; len(rest) > 0; {
		conn.SetWriteDeadline(time.Now().Add(tcpWrite))
		n, err := conn.Write(rest[:min(len(rest), tcpChunk)])
		if err != nil {
			// Back to the start of the cut line: the server drops the part it has.
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
		s.queue = lines[:0] // reuses the memory
	}
	s.mu.Unlock()
	return nil
}

//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// load is one measurement: what to send where, how, and for how long.
type load struct {
	addr    string
	traffic traffic
	conns   int
	// rate, when not 0, makes it an open loop: requests begin at Poisson distributed times whether or not others have
	// ended, rate a second over all connections. Latency counts from the time at which a request was due, so that a
	// stall shows in all requests that it delayed. Without a rate the loop is closed: each answer is followed by the
	// next request, and a slow server gets fewer requests.
	rate float64
	// The warm-up, which is not measured, ends after warm and after warmCalls answers.
	warm      time.Duration
	warmCalls int
	run       time.Duration
	calls     int             // ends the run after so many answers, good or bad, if not 0
	stop      <-chan struct{} // ends the run when closed
	mark      func() error    // called at the beginning and at the end of the measured time
	over      bool            // measure expects OVER_LIMIT in all but the first few answers
	// each, when set, is called with every measured answer.
	each func(answer)
	// hold, when set, gets the connections when the load has ended; otherwise they are closed.
	hold func(fd int)
}

// traffic is what a load sends: gRPC calls or HTTP/1.1 requests.
type traffic interface {
	drive(load) (*result, error)
}

// answer is the connection and time of an answer, and how long it took.
type answer struct {
	conn    int
	at      time.Time
	latency time.Duration
}

// outcome is the kind of an answer.
type outcome int

const (
	outcomeOK     outcome = iota
	outcomeOver           // OVER_LIMIT
	outcomeFailed         // refused, reset, or not the answer that the load expects
)

// latencies are the times of calls.
type latencies []time.Duration

// quantile returns the time that the share q of the calls did not exceed, 0 without calls.
func (l latencies) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l) // costs next to nothing the second time
	return l[min(int(q*float64(len(l))), len(l)-1)]
}

// result is the result of the measured part of a load.
type result struct {
	latency  latencies
	elapsed  time.Duration
	ok, over int
	failed   int // including those of the warm-up
	refusal  string
}

func (r *result) answered() int { return r.ok + r.over }

func (r *result) perSecond() float64 { return float64(r.answered()) / r.elapsed.Seconds() }

// check refuses a run that measured something else than intended.
func (r *result) check() error {
	if r.answered() == 0 {
		return fmt.Errorf("no request was answered as it should be (%d failed, %q)", r.failed, r.refusal)
	}
	return nil
}

func (l load) drive() (*result, error) { return l.traffic.drive(l) }

// driveClean is drive for a load in which no request may fail.
func (l load) driveClean() (*result, error) {
	r, err := l.drive()
	if err == nil && r.failed > 0 {
		err = fmt.Errorf("%d as wanted, %d not: %s", r.ok, r.failed, r.refusal)
	}
	return r, err
}

// background begins a load that goes on until end is called.
func (l load) background() (end func() (*result, error)) {
	stop := make(chan struct{})
	l.run, l.stop = time.Hour, stop
	var running sync.WaitGroup
	var r *result
	var err error
	running.Go(func() { r, err = l.drive() })
	return func() (*result, error) {
		close(stop)
		running.Wait()
		return r, err
	}
}

// exchange is a protocol's part of a running load. The runner calls it on the load's thread.
type exchange interface {
	// dial makes connection number conn.
	dial(conn int) (*socket, error)
	// begin sends a connection's next request, which was due at the given time.
	begin(conn int, due int64) error
	// beginDue sends a request of an open loop over a connection of its choice, or notes that it is due.
	beginDue(due int64) error
	// serve writes and reads as far as a connection is ready, and reports each answer by runner.ended.
	serve(conn int) error
}

// runner is a running load. One OS thread does everything: it waits on all connections at once and wakes when a request
// is due, within some ten microseconds (the Go runtime's timers are up to a millisecond late on an idle machine, which
// would be most of the measured latency).
type runner struct {
	load
	exchange exchange
	began    time.Time
	sockets  []*socket
	polled   []unix.PollFd
	random   *rand.Rand

	inFlight  int  // requests that each connection has at once in a closed loop
	exhausted bool // no request is left for any connection
	pending   int  // requests whose answers must be read before the load ends

	due       float64 // open loop: when the next request is due, ns since began
	warmed    int     // answers before the measured time
	measuring bool
	draining  bool
	from      int64
	result    result
}

func newRunner(l load, inFlight int) *runner {
	if l.mark == nil {
		l.mark = func() error { return nil }
	}
	if l.hold == nil {
		l.hold = func(fd int) { unix.Close(fd) }
	}
	return &runner{
		load: l, inFlight: inFlight, random: rand.New(rand.NewPCG(2, 3)),
		sockets: make([]*socket, l.conns), polled: make([]unix.PollFd, l.conns),
		result: result{latency: make(latencies, 0, cmp.Or(l.calls, 1<<22))}, // seldom grows while calls are measured
	}
}

// drive connects and runs the load. It ends early when the exchange is exhausted.
func (r *runner) drive() (*result, error) {
	defer r.close()
	for i := range r.sockets {
		if err := r.connect(i); err != nil {
			return &r.result, err
		}
	}
	r.began = time.Now()
	if err := onPunctualThread(r.loop); err != nil {
		return &r.result, fmt.Errorf("%s: %w", r.addr, err)
	}
	return &r.result, nil
}

// connect makes connection number i; if there was one, it replaces the broken connection.
func (r *runner) connect(i int) error {
	s, err := r.exchange.dial(i)
	if err != nil {
		return err
	}
	if before := r.sockets[i]; before != nil {
		before.close()
	}
	r.sockets[i], r.polled[i] = s, unix.PollFd{Fd: int32(s.fd)}
	return nil
}

func (r *runner) close() {
	for _, s := range r.sockets {
		if s != nil {
			r.hold(s.fd)
		}
	}
}

// now returns the time of the load's clock.
func (r *runner) now() int64 { return int64(time.Since(r.began)) }

func (r *runner) loop() error {
	if r.rate == 0 {
		for range r.inFlight {
			for i := range r.sockets {
				if err := r.exchange.begin(i, 0); err != nil {
					return err
				}
			}
		}
	}
	for {
		now := r.now()
		switch {
		case !r.measuring && now >= int64(r.warm) && r.warmed >= r.warmCalls:
			if err := r.mark(); err != nil {
				return err
			}
			r.measuring, r.from = true, r.now()
		case r.over(now):
			return r.end(now)
		}
		if err := r.beginDue(now); err != nil {
			return err
		}
		if err := r.poll(); err != nil {
			return err
		}
	}
}

// over reports whether the measured time has ended.
func (r *runner) over(now int64) bool {
	select {
	case <-r.stop: // never for nil
		return true
	default:
	}
	return r.exhausted ||
		r.measuring && (now >= r.from+int64(r.run) || r.calls > 0 && len(r.result.latency) >= r.calls)
}

func (r *runner) end(now int64) error {
	if !r.measuring {
		return errors.New("nothing was left to send after the warm-up")
	}
	r.result.elapsed = time.Duration(now - r.from)
	if err := r.mark(); err != nil {
		return err
	}
	if err := r.result.check(); err != nil {
		return err
	}
	return r.drain()
}

// drain waits for pending answers without counting them.
func (r *runner) drain() error {
	r.draining = true
	for deadline := time.Now().Add(10 * time.Second); r.pending > 0; {
		if time.Now().After(deadline) {
			return errors.New("requests in flight are not answered")
		}
		if err := r.poll(); err != nil {
			return err
		}
	}
	return nil
}

// beginDue begins the requests of an open loop whose time has come.
func (r *runner) beginDue(now int64) error {
	if r.rate == 0 {
		return nil
	}
	for r.due <= float64(now) {
		if err := r.exchange.beginDue(int64(r.due)); err != nil {
			return err
		}
		r.due += r.random.ExpFloat64() / r.rate * 1e9
	}
	return nil
}

// poll writes pending requests, waits until a connection is ready, and serves it.
func (r *runner) poll() error {
	for i, s := range r.sockets {
		if err := s.flush(); err != nil {
			return err
		}
		r.polled[i].Events = s.events()
	}
	timeout := unix.NsecToTimespec(r.pollTimeout())
	if _, err := unix.Ppoll(r.polled, &timeout, nil); err == unix.EINTR {
		return nil
	} else if err != nil {
		return fmt.Errorf("wait for answers: %w", err)
	}
	for i := range r.polled {
		if r.polled[i].Revents == 0 {
			continue
		}
		if err := r.exchange.serve(i); err != nil {
			return err
		}
	}
	return nil
}

// pollTimeout returns how long the loop may sleep, in ns. A millisecond bounds how late the end of the warm-up, the end
// of the run and a stop from outside are noticed.
func (r *runner) pollTimeout() int64 {
	now := r.now()
	next := float64(now + int64(time.Millisecond))
	if r.rate > 0 && !r.draining {
		next = min(next, r.due)
	}
	return max(0, int64(math.Ceil(next))-now)
}

// ended counts an answer that came at now to a request that was due at begun.
func (r *runner) ended(conn int, begun, now int64, o outcome, refusal string) {
	if r.draining {
		return
	}
	switch {
	case o == outcomeFailed:
		r.result.failed++ // in the warm-up too: failures are no better there
		r.result.refusal = refusal
	case !r.measuring:
	case o == outcomeOver:
		r.result.over++
	default:
		r.result.ok++
	}
	if !r.measuring {
		r.warmed++
		return
	}
	took := time.Duration(now - begun)
	r.result.latency = append(r.result.latency, took)
	if r.each != nil {
		r.each(answer{conn, r.began.Add(time.Duration(now)), took})
	}
}

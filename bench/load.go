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

// load describes one measurement: what is sent, where to and how, and for how long.
type load struct {
	addr    string
	traffic traffic
	conns   int
	// If rate is not 0, the loop is open: requests begin at Poisson-distributed times, whether or not earlier ones have
	// ended, rate per second over all connections. The latency of a request counts from when it was due, so that a
	// stall of the server shows in all requests that it delays. If rate is 0, the loop is closed: each answer is
	// followed by the next request, so that a slow server gets fewer requests.
	rate float64
	// The warm-up is not measured. It ends when the time warm has passed and at least warmCalls requests have been
	// answered.
	warm      time.Duration
	warmCalls int
	run       time.Duration
	calls     int             // if not 0, the run ends after so many answers, good or bad
	stop      <-chan struct{} // the run ends when it is closed
	mark      func() error    // called at the beginning and at the end of the measured time
	over      bool            // measure expects all answers to be OVER_LIMIT, except for a few at the beginning
	// each, if not nil, is called with every measured answer.
	each func(answer)
	// hold, if not nil, is called with each connection when the load has ended. If it is nil, the connections are
	// closed.
	hold func(fd int)
}

// traffic makes the requests that a load sends: gRPC calls or HTTP/1.1 requests.
type traffic interface {
	drive(load) (*result, error)
}

// answer describes one answer in a load: on which connection and when it arrived, and how long it took.
type answer struct {
	conn    int
	at      time.Time
	latency time.Duration
}

// outcome says what kind of answer a request got.
type outcome int

const (
	outcomeOK     outcome = iota
	outcomeOver           // the code OVER_LIMIT
	outcomeFailed         // an error, a reset, or an answer other than the load expects
)

// latencies has the time that each request took.
type latencies []time.Duration

// quantile returns the time that a share q of the requests did not exceed; 0 if there are none.
func (l latencies) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l) // sorting again costs next to nothing
	return l[min(int(q*float64(len(l))), len(l)-1)]
}

// result is the result of the measured part of a load.
type result struct {
	latency  latencies
	elapsed  time.Duration
	ok, over int
	failed   int // includes failures in the warm-up
	refusal  string
}

func (r *result) answered() int { return r.ok + r.over }

func (r *result) perSecond() float64 { return float64(r.answered()) / r.elapsed.Seconds() }

// check returns an error if the run has measured something other than intended.
func (r *result) check() error {
	if r.answered() == 0 {
		return fmt.Errorf("no request was answered as it should be (%d failed, %q)", r.failed, r.refusal)
	}
	return nil
}

func (l load) drive() (*result, error) { return l.traffic.drive(l) }

// driveClean runs a load in which no request may fail.
func (l load) driveClean() (*result, error) {
	r, err := l.drive()
	if err == nil && r.failed > 0 {
		err = fmt.Errorf("%d as wanted, %d not: %s", r.ok, r.failed, r.refusal)
	}
	return r, err
}

// background starts a load in the background. It runs until the returned function is called, which returns the result.
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

// exchange is the part of a running load that depends on the protocol. The runner calls it on the load's thread.
type exchange interface {
	// dial opens the connection with number conn.
	dial(conn int) (*socket, error)
	// begin sends the next request of a connection. due is when the request was due.
	begin(conn int, due int64) error
	// beginDue sends a request of an open loop over a connection that it chooses, or remembers that the request is due.
	beginDue(due int64) error
	// serve writes and reads on a connection as much as is possible without waiting, and reports each answer to
	// runner.ended.
	serve(conn int) error
}

// runner is a running load. One OS thread does everything. It waits for all connections at once, and wakes within some
// ten microseconds when a request is due. Timers of the Go runtime are up to a millisecond late on an idle machine,
// which would be most of the measured latency.
type runner struct {
	load
	exchange exchange
	began    time.Time
	sockets  []*socket
	polled   []unix.PollFd
	random   *rand.Rand

	inFlight  int  // number of requests that each connection has in flight in a closed loop
	exhausted bool // set when no connection has a further request
	pending   int  // number of requests whose answers must be read before the load ends

	due       float64 // open loop: when the next request is due, in ns since began
	warmed    int     // number of answers before the measured time
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
		// The capacity is so large that the list seldom grows while requests are measured.
		result: result{latency: make(latencies, 0, cmp.Or(l.calls, 1<<22))},
	}
}

// drive opens the connections and runs the load. It ends early if the exchange has no further requests.
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

// connect opens the connection with number i. If there is one, it is broken, and the new connection replaces it.
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

// now returns the time on the load's clock, in ns.
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
	case <-r.stop: // never ready if r.stop is nil
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

// drain waits for the answers to pending requests, without counting them.
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

// beginDue begins the requests of an open loop that are due.
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

// poll writes requests that have not been written yet, waits until a connection is ready, and serves it.
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

// pollTimeout returns how long the loop may sleep, in ns. It is at most a millisecond, because the ends of the warm-up
// and of the run, and r.stop, are only noticed between two sleeps.
func (r *runner) pollTimeout() int64 {
	now := r.now()
	next := float64(now + int64(time.Millisecond))
	if r.rate > 0 && !r.draining {
		next = min(next, r.due)
	}
	return max(0, int64(math.Ceil(next))-now)
}

// ended counts an answer, which has arrived at the time now. The request was due at the time begun. Both are in ns on
// the load's clock.
func (r *runner) ended(conn int, begun, now int64, o outcome, refusal string) {
	if r.draining {
		return
	}
	switch {
	case o == outcomeFailed:
		r.result.failed++ // counted in the warm-up too, since failures are never expected
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

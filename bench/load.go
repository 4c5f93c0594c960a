//go:build linux

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// load is one measurement: what to send where, how, and for how long.
type load struct {
	addr     string
	scenario scenario
	conns    int
	// streams is how many calls each connection keeps in flight (closed loop). Latency then says
	// little: a slow server is asked less often.
	streams int
	// rate, when not 0, makes it an open loop: calls begin at Poisson distributed times whether or
	// not others have ended, rate a second over all connections. Latency counts from the time a call
	// was due, so that a stall shows in all calls it delayed.
	rate    float64
	timeout string        // grpc-timeout of the calls, "" for none
	warm    time.Duration // not measured
	run     time.Duration
	calls   int // ends the run after so many calls, if not 0
	// stop, when set and closed, ends the run too.
	stop <-chan struct{}
	// mark is called at the beginning and at the end of the measured time.
	mark func()
	// each, when set, sees when every answer came and its latency.
	each func(at time.Time, latency time.Duration)
}

// result is what the measured part of a load came to.
type result struct {
	latency  histogram
	elapsed  time.Duration
	ok, over int
	failed   int // refused, reset, or without a verdict
	refusal  string
}

func (r *result) answered() int { return r.ok + r.over }

func (r *result) perSecond() float64 { return float64(r.answered()) / r.elapsed.Seconds() }

// drive runs a load on one OS thread that does everything: it waits on all connections at once
// and wakes when a call is due, to some ten microseconds (the Go runtime's timers are up to a
// millisecond late on an idle machine, which would be most of the latency measured).
func (l load) drive() (*result, error) {
	r := &runner{load: l, encoder: newEncoder(l.scenario, 1), random: rand.New(rand.NewPCG(2, 3))}
	defer r.close()
	for range l.conns {
		c, err := dial(l.addr, l.timeout)
		if err != nil {
			return nil, err
		}
		r.clients = append(r.clients, c)
		r.polled = append(r.polled, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
	}
	r.began = time.Now()
	if err := onPunctualThread(r.loop); err != nil {
		return nil, fmt.Errorf("%s at %s: %w", l.scenario.name, l.addr, err)
	}
	return &r.result, nil
}

// runner is a load under way.
type runner struct {
	load
	began   time.Time
	clients []*client
	polled  []unix.PollFd
	encoder *encoder
	random  *rand.Rand

	due       float64 // open loop: when the next call begins, ns since began
	turn      int     // open loop: the connection it begins on
	begun     int
	measuring bool
	from      int64
	result    result
}

func (r *runner) close() {
	for _, c := range r.clients {
		c.close()
	}
}

func (r *runner) now() int64 { return int64(time.Since(r.began)) }

func (r *runner) loop() error {
	if r.rate == 0 {
		for range r.streams {
			for _, c := range r.clients {
				r.begin(c, 0)
			}
		}
	}
	for {
		now := r.now()
		switch {
		case !r.measuring && now >= int64(r.warm):
			r.measuring, r.from = true, now
			r.notify()
		case r.measuring && r.over(now):
			r.result.elapsed = time.Duration(now - r.from)
			r.notify()
			return r.verdict()
		}
		r.beginDue(now)
		if err := r.exchange(); err != nil {
			return err
		}
	}
}

// over says that the measured time has come to its end.
func (r *runner) over(now int64) bool {
	select {
	case <-r.stop: // never for nil
		return true
	default:
	}
	return now >= r.from+int64(r.run) || r.calls > 0 && r.result.answered() >= r.calls
}

func (r *runner) notify() {
	if r.mark != nil {
		r.mark()
	}
}

// verdict refuses a run that measured something else than it was meant to.
func (r *runner) verdict() error {
	if r.result.answered() == 0 {
		return fmt.Errorf("no call was answered (%d failed, %q)", r.result.failed, r.result.refusal)
	}
	return nil
}

// beginDue begins the calls of an open loop whose time has come.
func (r *runner) beginDue(now int64) {
	if r.rate == 0 {
		return
	}
	for r.due <= float64(now) {
		r.begin(r.clients[r.turn], int64(r.due))
		r.turn = (r.turn + 1) % len(r.clients)
		r.due += r.random.ExpFloat64() / r.rate * 1e9
	}
}

// begin starts a call that was due at the given time. In a closed loop calls may run out.
func (r *runner) begin(c *client, due int64) {
	if r.calls > 0 && r.rate == 0 && r.begun >= r.calls {
		return
	}
	r.begun++
	if c.full() { // a server that has stood still for so long answers nobody in time
		r.result.failed++
		r.result.refusal = "too many calls in flight"
		return
	}
	c.begin(r.encoder.next(), due)
}

// exchange writes what has been begun, waits until something can be done, and reads.
func (r *runner) exchange() error {
	for i, c := range r.clients {
		if err := c.flush(); err != nil {
			return err
		}
		r.polled[i].Events = c.events()
	}
	if ready, err := wait(r.polled, r.pollTimeout()); !ready {
		return err
	}
	now := r.now()
	for i, c := range r.clients {
		if r.polled[i].Revents&^unix.POLLOUT == 0 {
			continue
		}
		if err := c.receive(func(done *call) { r.ended(c, done, now) }); err != nil {
			return err
		}
		r.retry(c)
	}
	return nil
}

// pollTimeout is how long the loop may sleep, ns.
func (r *runner) pollTimeout() int64 {
	next := float64(r.from + int64(r.run))
	if !r.measuring {
		next = float64(r.warm)
	}
	if r.rate > 0 {
		next = min(next, r.due)
	}
	return max(0, int64(math.Ceil(next))-r.now())
}

// ended counts an answer and, in a closed loop, begins the next call.
func (r *runner) ended(c *client, done *call, now int64) {
	if r.measuring {
		switch {
		case done.bad || done.overall == 0:
			r.result.failed++
			r.result.refusal = c.lastRefused
		case done.overall == 2:
			r.result.over++
		default:
			r.result.ok++
		}
		r.result.latency.record(time.Duration(now - done.begun))
		if r.each != nil {
			r.each(r.began.Add(time.Duration(now)), time.Duration(now-done.begun))
		}
	}
	if r.rate == 0 {
		r.begin(c, now)
	}
}

// retry begins the calls for which the server had no window.
func (r *runner) retry(c *client) {
	if len(c.waiting) == 0 {
		return
	}
	waiting := c.waiting
	c.waiting = nil
	for _, due := range waiting {
		c.begin(r.encoder.next(), due)
	}
}

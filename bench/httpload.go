//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// traffic makes the requests of a load and judges the answers. Both run on the load's own thread.
type traffic struct {
	// next appends a connection's next request to b. false: it has none left and rests from now on.
	next func(b []byte, conn int) ([]byte, bool)
	// judge says whether an answer is what the scenario asks for. body is overwritten by the next one.
	judge func(conn, status int, body []byte) bool
}

// httpLoad is one measurement over HTTP/1.1. Connections have one request in flight each.
type httpLoad struct {
	addr    string
	traffic traffic
	conns   int
	// rate, when not 0, makes it an open loop: requests are due at Poisson distributed times, and one
	// for which no connection is free waits, with the clock running.
	rate float64
	// The warm-up ends after warm, and after warmCalls answers.
	warm      time.Duration
	warmCalls int
	run       time.Duration
	calls     int             // ends the run after so many answers, good or bad, if not 0
	stop      <-chan struct{} // ends it when closed
	mark      func() error    // called at the beginning and at the end of the measured time
	// each, when set, sees every measured answer's latency.
	each func(conn int, latency time.Duration)
}

// drive runs a load on one OS thread, like load.drive. The run ends early when all connections rest.
func (l httpLoad) drive() (*result, error) {
	r := &httpRunner{httpLoad: l, random: rand.New(rand.NewPCG(4, 5))}
	defer r.close()
	for range l.conns {
		c, err := dialHTTP(l.addr)
		if err != nil {
			return nil, err
		}
		r.clients = append(r.clients, c)
		r.polled = append(r.polled, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
	}
	r.began = time.Now()
	if err := onPunctualThread(r.loop); err != nil {
		return nil, fmt.Errorf("%s: %w", l.addr, err)
	}
	return &r.result, nil
}

// httpRunner is an httpLoad under way.
type httpRunner struct {
	httpLoad
	began   time.Time
	clients []*httpClient
	polled  []unix.PollFd
	random  *rand.Rand

	resting   int
	warmed    int     // answers before the measured time
	due       float64 // open loop: when the next request is due, ns since began
	waiting   []int64 // open loop: requests that were due while no connection was free
	measuring bool
	draining  bool
	from      int64
	result    result
}

func (r *httpRunner) close() {
	for _, c := range r.clients {
		c.close()
	}
}

func (r *httpRunner) now() int64 { return int64(time.Since(r.began)) }

func (r *httpRunner) loop() error {
	if r.rate == 0 {
		for i := range r.clients {
			if err := r.begin(i, 0); err != nil {
				return err
			}
		}
	}
	for {
		now := r.now()
		switch {
		case !r.measuring && now >= int64(r.warm) && r.warmed >= r.warmCalls:
			if err := r.notify(); err != nil {
				return err
			}
			r.measuring, r.from = true, r.now()
		case r.over(now):
			if !r.measuring {
				return errors.New("nothing was left to ask after the warm-up")
			}
			r.result.elapsed = time.Duration(now - r.from)
			if err := r.notify(); err != nil {
				return err
			}
			if r.result.answered() == 0 {
				return fmt.Errorf("no request was answered as it should (%d failed, %s)", r.result.failed, r.result.refusal)
			}
			return r.drain()
		}
		if err := r.beginDue(now); err != nil {
			return err
		}
		if err := r.exchange(); err != nil {
			return err
		}
	}
}

// drain waits for what is in flight without counting it: an answer that nobody reads may hold the token
// that the next request needs.
func (r *httpRunner) drain() error {
	r.draining = true
	for deadline := time.Now().Add(10 * time.Second); ; {
		if !slices.ContainsFunc(r.clients, func(c *httpClient) bool { return c.busy }) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("requests in flight are not answered")
		}
		if err := r.exchange(); err != nil {
			return err
		}
	}
}

func (r *httpRunner) over(now int64) bool {
	select {
	case <-r.stop: // never for nil
		return true
	default:
	}
	if r.resting == len(r.clients) {
		return true
	}
	return r.measuring && (now >= r.from+int64(r.run) || r.calls > 0 && r.result.latency.n >= uint64(r.calls))
}

func (r *httpRunner) notify() error {
	if r.mark == nil {
		return nil
	}
	return r.mark()
}

// begin sends a connection's next request, which was due at the given time.
func (r *httpRunner) begin(conn int, due int64) error {
	c := r.clients[conn]
	request, ok := r.traffic.next(c.out[:0], conn)
	if !ok {
		r.resting++
		return nil
	}
	c.out, c.busy, c.begun = request, true, due
	return c.flush()
}

// beginDue begins the requests of an open loop whose time has come.
func (r *httpRunner) beginDue(now int64) error {
	if r.rate == 0 {
		return nil
	}
	for r.due <= float64(now) {
		r.waiting = append(r.waiting, int64(r.due))
		r.due += r.random.ExpFloat64() / r.rate * 1e9
	}
	for i, c := range r.clients {
		if len(r.waiting) == 0 {
			break
		}
		if c.busy {
			continue
		}
		if err := r.begin(i, r.waiting[0]); err != nil {
			return err
		}
		r.waiting = r.waiting[:copy(r.waiting, r.waiting[1:])]
	}
	return nil
}

// exchange waits until something can be done, and does it.
func (r *httpRunner) exchange() error {
	for i, c := range r.clients {
		r.polled[i].Events = c.events()
	}
	if ready, err := wait(r.polled, r.pollTimeout()); !ready {
		return err
	}
	for i := range r.clients {
		if r.polled[i].Revents == 0 {
			continue
		}
		if err := r.serve(i); err != nil {
			return err
		}
	}
	return nil
}

// serve writes and reads what a connection is ready for. One that breaks is a failed request, and another
// takes its place.
func (r *httpRunner) serve(conn int) error {
	c := r.clients[conn]
	err := c.flush()
	status, body, done := 0, []byte(nil), false
	if err == nil {
		status, body, done, err = c.receive()
	}
	if err != nil {
		next, redialed := dialHTTP(r.addr)
		if redialed != nil {
			return errors.Join(err, redialed)
		}
		next.begun, status, body, done = c.begun, 0, []byte(err.Error()), c.busy
		c.close()
		r.clients[conn], r.polled[conn].Fd = next, int32(next.fd)
	}
	if done {
		return r.ended(conn, status, body)
	}
	return nil
}

// pollTimeout is how long the loop may sleep, ns. A measured time that waits for answers is looked at when
// one comes; a millisecond bounds what a stop from outside takes.
func (r *httpRunner) pollTimeout() int64 {
	next := float64(r.now() + int64(time.Millisecond))
	if r.rate > 0 && r.due < next {
		next = r.due
	}
	return max(0, int64(math.Ceil(next))-r.now())
}

// ended counts an answer and, in a closed loop, begins the connection's next request.
func (r *httpRunner) ended(conn, status int, body []byte) error {
	now := r.now()
	ok := r.traffic.judge(conn, status, body)
	if r.draining {
		return nil
	}
	switch {
	case !ok:
		r.result.failed++ // in the warm-up too: it is no better there
		r.result.refusal = fmt.Sprintf("%d %.200s", status, body)
	case r.measuring:
		r.result.ok++
	}
	if r.measuring {
		took := time.Duration(now - r.clients[conn].begun)
		r.result.latency.record(took)
		if r.each != nil {
			r.each(conn, took)
		}
	} else {
		r.warmed++
	}
	if r.rate == 0 {
		return r.begin(conn, now)
	}
	return nil
}

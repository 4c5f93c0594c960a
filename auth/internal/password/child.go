package password

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"syscall"
	"time"
)

// A child process ends early if it has run for steady or less. After early ends the next child is started only after a
// pause, which doubles with each early end until a child runs for longer (see note). Nothing is hashed during the
// pause.
const (
	steady     = time.Minute
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
	// After this many children that were never ready, no further child is started.
	hopeless = 3
)

// child is the process that hashes passwords for this one. It is started for the first request, and again when it has
// ended. If the operating system allows no other process, threads of this process hash instead.
type child struct {
	o Options

	mu      sync.Mutex // also held while a child is started, when no request can proceed
	now     *process   // nil: none is running
	closed  bool
	worked  bool // a child has been ready
	short   int  // how many children have ended, counted from the last one that ran for longer than steady
	resume  time.Time
	refusal sync.Once
	// inherited makes sure that one warning is logged at most about descriptors that could not be marked close-on-exec.
	inherited sync.Once
	threads   *Workers // nil while children hash
}

// roundTrip sends a request to the child and returns the response. If the child ends in the meantime, the next child
// gets the request, but only once: a request that kills every child must not be repeated for ever.
func (c *child) roundTrip(q request) (response, error) {
	for range 2 {
		p, threads, err := c.running()
		if err != nil {
			return response{}, err
		}
		if threads != nil {
			return threads.compute(context.Background(), q)
		}
		a, err := p.roundTrip(q)
		if err == nil {
			return a, nil
		}
		c.ended(p)
	}
	return response{}, &Busy{RetryAfter: time.Second}
}

// running returns the child, which it starts if there is none, or the threads that hash instead of a child.
func (c *child) running() (*process, *Workers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, ErrClosed
	case c.now != nil || c.threads != nil:
		return c.now, c.threads, nil
	}
	if pause := time.Until(c.resume); pause > 0 {
		return nil, nil, &Busy{RetryAfter: pause.Truncate(time.Second) + time.Second}
	}
	if err := closeOnExec(); err != nil {
		c.inherited.Do(func() {
			c.o.Log.Warn("password: the process for hashing may inherit descriptors that this one was started with",
				"error", err)
		})
	}
	p, err := startProcess(c.o.Child(), c.o.Workers, cmp.Or(c.o.patience, replyTimeout))
	if err == nil {
		c.now, c.worked = p, true
		if p.problem != "" {
			c.refusal.Do(func() { c.o.Log.Warn(normalPriority, "error", p.problem) })
		}
		return p, nil, nil
	}
	c.note(time.Now())
	if refused(err) || !c.worked && c.short == hopeless {
		c.o.Log.Warn("password: no process for hashing can be started; threads of this one hash, and a flood of "+
			"sign-ins will slow other requests", "error", err)
		own := c.o
		own.Child, own.Queue = nil, pendingPerWorker*c.o.Workers // only this caller uses these workers
		c.threads = NewWorkers(own)
		return nil, c.threads, nil
	}
	c.o.Log.Warn("password: the process for hashing did not start", "error", err)
	return nil, nil, &Busy{RetryAfter: time.Second}
}

// refused reports whether the start of a child failed because the system does not allow it: a missing right or a
// missing file. Other errors may be temporary, such as a shortage, or a broken pipe of a child that ended before it had
// read its first request.
func refused(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EPIPE:
		return false
	}
	return true
}

// ended drops a child that has ended. It logs the end once.
func (c *child) ended(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != p {
		return
	}
	c.now = nil
	if !c.closed {
		c.note(p.began)
		c.o.Log.Warn("password: the process for hashing has ended; its requests go to a new one", "error", p.end())
	}
}

// note records that a child that was started at began has just ended, or that it could not be started, and sets the
// time c.resume before which no child is started. The very first child causes no pause, and a child that ran for longer
// than steady causes none either. After such a child, each child that ends within steady causes a pause: firstPause the
// first time, then each time twice the pause before, and at most lastPause.
func (c *child) note(began time.Time) {
	if time.Since(began) > steady {
		c.short = 0
	}
	if c.short > 0 {
		c.resume = time.Now().Add(min(lastPause, firstPause<<min(c.short-1, 10)))
	}
	c.short++
}

// close ends the child, which gets no further requests.
func (c *child) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.now != nil {
		c.now.stop()
		c.now = nil
	}
	if c.threads != nil {
		c.threads.Close()
	}
}

package password

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// queuePerWorker is the default length of the queue for each worker. With bcrypt of cost 10, the last call in the
	// queue waits for a second and a half.
	queuePerWorker = 32
	// pendingPerWorker is how many requests a child has for each of its workers: the one that is computed and the next,
	// so that no core is idle while a response and a request are sent.
	pendingPerWorker = 2
)

// Options are the options of NewWorkers.
type Options struct {
	// Workers is the number of threads that hash (AUTH_PASSWORD_WORKERS); 0 is DefaultWorkers().
	Workers int
	// Queue is how many calls may wait for a worker; 0 stands for 32 per worker.
	Queue int
	// Params say how new passwords are hashed.
	Params Params
	// Child returns the command of a process that calls Serve and does the hashing. The process is started for the
	// first hash. Nil: threads of this process hash.
	Child func() *exec.Cmd
	// Log gets one warning if the priority may not be lowered, and one whenever a child ends; nil: slog.Default().
	Log *slog.Logger

	patience time.Duration // for tests; 0: replyTimeout
}

// Workers hash and check passwords, a fixed number at a time.
//
// With Options.Child, another process hashes at the lowest priority, so that a flood of sign-ins takes only processor
// time that is otherwise idle. A thread of low priority in this process would not have this effect: while the kernel
// makes the thread wait, it occupies one of Go's processors, and a goroutine that stops the world or sweeps waits for
// it. During a flood, GET /user then took 15 ms in the median and 300 to 400 ms at the 99th percentile; with a child,
// the median is the same as without a flood.
//
// Without Options.Child, goroutines of this process hash. This is for commands and tests, where nothing else needs the
// processor.
type Workers struct {
	jobs    chan *job
	workers int
	takers  int    // number of goroutines that take jobs
	child   *child // nil: goroutines of this process hash
	current atomic.Pointer[settings]

	mu     sync.RWMutex // held for reading while a job is put into the queue
	closed bool

	wg      sync.WaitGroup
	running atomic.Int64
	mean    atomic.Int64 // duration of a job in nanoseconds, exponentially smoothed
	refused atomic.Uint64
	done    atomic.Uint64
}

// settings hold how passwords are hashed, and the hash that stands for accounts without one. Use replaces them.
type settings struct {
	params Params
	dummy  string
}

// job is one call of Hash or Check. A worker runs it, unless the caller has stopped waiting before.
type job struct {
	run    func()
	failed error // panic of run as an error: a request must not end the daemon
	state  atomic.Int32
	done   chan struct{}
}

func (j *job) runSafely() {
	defer func() {
		if r := recover(); r != nil {
			j.failed = fmt.Errorf("password: panic: %v", r)
		}
	}()
	j.run()
}

const (
	jobWaiting int32 = iota
	jobRunning
	jobAbandoned
)

// Busy is the error ErrBusy, with the time after which to retry.
type Busy struct {
	RetryAfter time.Duration // whole seconds, at least one; the estimated time until the queue is empty
}

func (b *Busy) Error() string { return fmt.Sprintf("%v, retry after %v", ErrBusy, b.RetryAfter) }

// Is makes errors.Is report that a *Busy is ErrBusy.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// Stats are metrics of the workers: Running and Waiting are current, Done and Refused count since the start.
type Stats struct {
	Running, Waiting int
	Done, Refused    uint64
}

// NewWorkers starts the workers.
func NewWorkers(o Options) *Workers {
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers()
	}
	if o.Queue <= 0 {
		o.Queue = queuePerWorker * o.Workers
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	w := &Workers{jobs: make(chan *job, o.Queue), workers: o.Workers, takers: o.Workers}
	w.Use(o.Params)
	if o.Child != nil {
		w.child = &child{o: o}
		w.takers *= pendingPerWorker
	}
	for range w.takers {
		w.wg.Go(w.work)
	}
	return w
}

// Use changes how new passwords are hashed, and with that the cost of a check for an unknown user.
func (w *Workers) Use(p Params) { w.current.Store(&settings{params: p, dummy: p.dummy()}) }

// Hash returns the hash of a new password. The error is ErrTooLong, a *Busy, ErrClosed, context.Canceled, or says why a
// worker failed.
func (w *Workers) Hash(ctx context.Context, password string) (string, error) {
	if len(password) > MaxBytes {
		return "", ErrTooLong
	}
	a, err := w.compute(ctx, request{opHash, w.current.Load().params.String(), []byte(password)})
	if err == nil && a.kind != saysHash {
		err = a.err()
	}
	if err != nil {
		return "", err
	}
	return a.text, nil
}

// Check reports whether password matches the hash and, if so, whether a new hash is needed because the parameters have
// changed or the hash was imported. An empty hash stands for an account that does not exist or has no password: no
// password matches, at the cost of a check with the current parameters. The error is a *Busy, ErrClosed,
// context.Canceled, or says what is wrong with the hash or why a worker failed.
func (w *Workers) Check(ctx context.Context, hash, password string) (ok, rehash bool, err error) {
	now := w.current.Load()
	nobody := hash == ""
	if nobody {
		hash = now.dummy
	}
	h, err := parse(hash)
	if err != nil {
		return false, false, err
	}
	a, err := w.compute(ctx, request{opCheck, hash, []byte(password)})
	if err == nil && a.kind != saysRight && a.kind != saysWrong {
		err = a.err()
	}
	if err != nil || a.kind == saysWrong || nobody {
		return false, false, err
	}
	return true, !h.madeBy(now.params), nil
}

// compute has a worker compute the response to a request.
func (w *Workers) compute(ctx context.Context, q request) (response, error) {
	var a response
	var failed error
	err := w.do(ctx, func() {
		if w.child != nil {
			a, failed = w.child.roundTrip(q)
		} else {
			a = q.answer()
		}
		clear(q.password)
	})
	if errors.Is(err, context.DeadlineExceeded) { // the wait for a worker took all the time, as if the queue were full
		err = &Busy{RetryAfter: 2 * time.Second}
	}
	if err != nil {
		return response{}, err // do not read a and failed: the worker may still write them
	}
	return a, failed
}

// do waits until a worker has run f, or until ctx ends. If ctx ends first, f may still be running, and the caller must
// not read the variables that f sets.
func (w *Workers) do(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{run: f, done: make(chan struct{})}
	if err := w.enqueue(j); err != nil {
		return err
	}
	select {
	case <-j.done:
		return j.failed
	case <-ctx.Done():
		j.state.CompareAndSwap(jobWaiting, jobAbandoned)
		return ctx.Err()
	}
}

func (w *Workers) enqueue(j *job) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return ErrClosed
	}
	select {
	case w.jobs <- j:
		return nil
	default:
		w.refused.Add(1)
		return &Busy{RetryAfter: w.retryAfter()}
	}
}

// retryAfter estimates how long all accepted jobs will take.
func (w *Workers) retryAfter() time.Duration {
	jobs := float64(len(w.jobs)) + float64(w.running.Load())
	seconds := math.Ceil(jobs * float64(w.mean.Load()) / float64(w.takers) / float64(time.Second))
	return time.Duration(max(seconds, 1)) * time.Second
}

// normalPriority is logged once if the kernel refuses to lower the priority.
const normalPriority = "password: hashing runs at normal priority"

// work runs jobs until Close: it computes them, or passes them to the child.
func (w *Workers) work() {
	for j := range w.jobs {
		if !j.state.CompareAndSwap(jobWaiting, jobRunning) {
			continue
		}
		w.running.Add(1)
		start := time.Now()
		j.runSafely()
		took := int64(time.Since(start))
		w.running.Add(-1)
		if old := w.mean.Load(); old > 0 {
			took = old + (took-old)/8
		}
		w.mean.Store(took) // a concurrent update may be lost, which does not matter for an estimate
		w.done.Add(1)
		close(j.done)
	}
}

// Stats returns the current metrics of the workers.
func (w *Workers) Stats() Stats {
	taken := int(w.running.Load())
	running := min(taken, w.workers) // the other jobs that are taken wait in the child
	return Stats{Running: running, Waiting: len(w.jobs) + taken - running, Done: w.done.Load(),
		Refused: w.refused.Load()}
}

// Close refuses new calls, waits for the calls in the queue, and ends the threads or the child.
func (w *Workers) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.jobs)
	}
	w.mu.Unlock()
	w.wg.Wait()
	if w.child != nil {
		w.child.close()
	}
}

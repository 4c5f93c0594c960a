package password

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// queuePerWorker is the default length of the queue for each worker. At bcrypt's cost 10 its last place
	// waits for a second and a half.
	queuePerWorker = 32
	// pendingPerWorker is how many requests a child holds for each of its workers: the one that is computed
	// and the next, so that no core rests while a response goes up and a request comes down.
	pendingPerWorker = 2
)

// Options are those of NewWorkers.
type Options struct {
	// Workers is the number of threads that hash (AUTH_PASSWORD_WORKERS); 0 is DefaultWorkers().
	Workers int
	// Queue is how many calls may wait for a worker; 0 is 32 for each.
	Queue int
	// Params is how new passwords are hashed.
	Params Params
	// Child makes the command of a process that calls Serve and does the hashing; it is started with the
	// first hash. Nil: threads of this process hash.
	Child func() *exec.Cmd
	// Log gets a line, once, when priorities may not be lowered, and one when a child ends. Nil: slog.Default().
	Log *slog.Logger

	patience time.Duration // for tests; 0: replyTimeout
}

// Workers hash and check, a fixed number at a time.
//
// With Options.Child that is another process of the lowest priority, so that a flood of sign-ins takes only otherwise
// idle processor time. A thread of low priority in this one would not take processor time from others, but block them:
// while the kernel has it wait, it keeps one of Go's processors, and a goroutine that stops the world or sweeps waits
// for it (GET /user under a flood: p50 15 ms, p99 300 to 400 ms; with a child p50 is what it is without the flood).
//
// Without, goroutines of this process hash: for commands and tests, where nothing else waits for the processor.
type Workers struct {
	jobs    chan *job
	workers int
	takers  int    // goroutines that take jobs
	child   *child // nil: hash here
	current atomic.Pointer[settings]

	mu     sync.RWMutex // held for reading while a job is put into the queue
	closed bool

	wg      sync.WaitGroup
	running atomic.Int64
	mean    atomic.Int64 // nanoseconds of a job with its taker, exponentially smoothed
	refused atomic.Uint64
	done    atomic.Uint64
}

// settings are what Use exchanges.
type settings struct {
	params Params
	dummy  string
}

// job is one call. A worker runs it unless its caller has left before.
type job struct {
	run    func()
	failed error // a panic of run; a request must not end the daemon
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

// Busy is ErrBusy with the time after which to retry.
type Busy struct {
	RetryAfter time.Duration // whole seconds, at least one: until the queue is worked off
}

func (b *Busy) Error() string { return fmt.Sprintf("%v, retry after %v", ErrBusy, b.RetryAfter) }

// Is says that a *Busy is ErrBusy.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// Stats are metrics of the workers: now, and since the start.
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
	if o.Log == nil {
		o.Log = slog.Default()
	}
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

// Use changes how new passwords are hashed, and with it the cost of a check for an unknown user.
func (w *Workers) Use(p Params) { w.current.Store(&settings{params: p, dummy: p.dummy()}) }

// Hash makes the hash of a new password. It fails with ErrTooLong, a *Busy, ErrClosed, or ctx's error.
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

// Check reports whether password has that hash, and whether a right one needs a new hash because the parameters have
// changed or it was imported. An empty hash stands for an account that doesn't exist or has no password: nothing is
// right, at the cost of a check with the current parameters. The error is that of an unreadable hash, a *Busy,
// ErrClosed, or ctx's.
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

// compute has a worker compute the response.
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
	if err != nil {
		return response{}, err // a and failed may still be written to
	}
	return a, failed
}

// do waits until a worker has run f, or ctx ends. A running f is not stopped: its result is discarded then, and f's
// variables must not be read.
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

// retryAfter estimates how long the jobs in hand take.
func (w *Workers) retryAfter() time.Duration {
	jobs := float64(len(w.jobs)) + float64(w.running.Load())
	seconds := math.Ceil(jobs * float64(w.mean.Load()) / float64(w.takers) / float64(time.Second))
	return time.Duration(max(seconds, 1)) * time.Second
}

// normalPriority is what the log says, once, when the kernel refuses.
const normalPriority = "password: hashing runs at normal priority"

// work is the life of one worker, or of a goroutine that uses the child's.
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
		w.mean.Store(took) // a lost update of another worker does not matter to an estimate
		w.done.Add(1)
		close(j.done)
	}
}

// Stats returns the workers' metrics.
func (w *Workers) Stats() Stats {
	taken := int(w.running.Load())
	running := min(taken, w.workers) // the others wait in the child
	return Stats{Running: running, Waiting: len(w.jobs) + taken - running, Done: w.done.Load(),
		Refused: w.refused.Load()}
}

// Close refuses new calls, lets those in the queue end, and ends the threads or the child.
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

package imagetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// patience is the least time for which a probe waits: a machine that is busy with tests is slow, and tests are not
// about the one second that manifests allow.
const patience = 20 * time.Second

// Probe is one of a container's probes: a GET request or, if URL is "", a TCP connection.
type Probe struct {
	URL, TCP         string
	Timeout, Period  time.Duration
	FailureThreshold int
}

// Once probes the container once.
func (p Probe) Once(r *Running) error {
	if p.URL != "" {
		resp, err := r.Client(max(p.Timeout, patience)).Get(p.URL)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode >= 400 {
			return fmt.Errorf("%s: %s", p.URL, resp.Status)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(p.Timeout, patience))
	defer cancel()
	conn, err := r.Dial(ctx, "tcp", p.TCP)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Watch is a probe that is repeated as a kubelet does.
type Watch struct {
	mu      sync.Mutex
	n       int // number of probes made
	row     int // number of failures since the last success
	tripped error
	stop    chan struct{}
	stopped chan struct{}
	t       testing.TB
}

// Watch repeats the probe every Period until t ends or Stop is called. The Watch trips when as many probes as
// FailureThreshold have failed without a success between them.
func (p Probe) Watch(t testing.TB, r *Running) *Watch {
	w := &Watch{stop: make(chan struct{}), stopped: make(chan struct{}), t: t}
	go func() {
		defer close(w.stopped)
		tick := time.NewTicker(p.Period)
		defer tick.Stop()
		for {
			w.add(p.Once(r), max(1, p.FailureThreshold))
			select {
			case <-tick.C:
			case <-w.stop:
				return
			}
		}
	}()
	t.Cleanup(func() { w.Stop() })
	return w
}

func (w *Watch) add(err error, threshold int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	w.row++
	if err == nil {
		w.row = 0
	}
	if w.row >= threshold && w.tripped == nil {
		w.tripped = err
	}
}

// State returns whether the last probe succeeded, and how many probes were made.
func (w *Watch) State() (ok bool, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n > 0 && w.row == 0, w.n
}

// Stop ends the probes. It returns the error of the probe with which the Watch tripped; nil if it has not.
func (w *Watch) Stop() error {
	w.mu.Lock()
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.mu.Unlock()
	<-w.stopped
	return w.tripped
}

// Tripped returns the error of the probe with which the Watch tripped; nil if it has not.
func (w *Watch) Tripped() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tripped
}

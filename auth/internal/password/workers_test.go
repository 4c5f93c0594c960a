package password

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"gatehouse/shared/await"
)

// TestMain lets the test binary be a hashing child, or one that misbehaves.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "hashing" {
		err := children[os.Args[2]]()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var cheap = Params{cost: 4}

// Threads and a child give the same responses.
func TestCheck(t *testing.T) {
	t.Run("threads", func(t *testing.T) { testCheck(t, Options{Workers: 2, Params: cheap}) })
	t.Run("child", func(t *testing.T) { testCheck(t, Options{Workers: 2, Params: cheap, Child: childOf("good")}) })
}

func testCheck(t *testing.T, o Options) {
	w := NewWorkers(o)
	defer w.Close()
	ctx := context.Background()
	hash, err := w.Hash(ctx, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	f := func(hash, password string, wantOK, wantRehash bool) {
		t.Helper()
		ok, rehash, err := w.Check(ctx, hash, password)
		if ok != wantOK || rehash != wantRehash || err != nil {
			t.Errorf("%v, %v, %v; want %v, %v", ok, rehash, err, wantOK, wantRehash)
		}
	}
	f(hash, "correct horse", true, false)
	f(hash, "wrong", false, false)
	f(bcryptVector, "U*U", true, true)
	f(bcryptVector, "U*", false, false)
	f(pbkdf2Vector, "password", true, true)
	f(pbkdf2Vector, "Password", false, false)
	f(argonVector, "password", true, true)
	f(firebaseVector, "user1password", true, true)
	f(hash, strings.Repeat("x", 1<<20), false, false)
	f("", "", false, false)
	w.Use(Params{argon: true, memory: 64, time: 1, threads: 1})
	f(hash, "correct horse", true, true)
	f("", "correct horse", false, false)
	argon, err := w.Hash(ctx, "häst")
	if err != nil || !strings.HasPrefix(argon, "$argon2id$v=19$m=64,t=1,p=1$") {
		t.Errorf("%s, %v", argon, err)
	}
	f(argon, "häst", true, false)
	if _, _, err := w.Check(ctx, "nonsense", "x"); err == nil {
		t.Error("an unreadable hash gives no error")
	}
	if _, err := w.Hash(ctx, strings.Repeat("x", 73)); err != ErrTooLong {
		t.Errorf("73 bytes: %v", err)
	}
}

// An account that does not exist costs as much as one that does: the same algorithm with the same costs.
func TestUnknownUserCostsTheSame(t *testing.T) {
	w := NewWorkers(Options{Workers: 1, Params: cheap})
	defer w.Close()
	for _, p := range []Params{cheap, {cost: 5}, {argon: true, memory: 64, time: 1, threads: 1}} {
		w.Use(p)
		before := w.Stats().Done
		if ok, _, err := w.Check(context.Background(), "", "x"); ok || err != nil {
			t.Error(ok, err)
		}
		if w.Stats().Done != before+1 {
			t.Error("no worker was asked")
		}
		if h, err := parse(w.current.Load().dummy); err != nil || !h.madeBy(p) {
			t.Errorf("%s: the dummy is made otherwise, %v", p, err)
		}
	}
}

// block occupies n workers until the function returned is called.
func block(w *Workers, n int) (release func()) {
	stop := make(chan struct{})
	var started, ended sync.WaitGroup
	for range n {
		started.Add(1)
		ended.Go(func() {
			w.do(context.Background(), func() { started.Done(); <-stop })
		})
		started.Wait()
	}
	return sync.OnceFunc(func() { close(stop); ended.Wait() })
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkers(Options{Workers: 2, Queue: 3, Params: cheap})
		defer w.Close()
		release := block(w, 2)
		defer release()
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				if err := w.do(context.Background(), func() {}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if s := w.Stats(); s.Running != 2 || s.Waiting != 3 {
			t.Errorf("%+v, want 2 running and 3 waiting", s)
		}
		w.mean.Store(int64(900 * time.Millisecond)) // 5 jobs of 0.9 s on 2 workers: 2.25 s
		_, _, err := w.Check(context.Background(), "", "x")
		var busy *Busy
		if !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.RetryAfter != 3*time.Second {
			t.Errorf("a full queue answers %v", err)
		}
		if _, err := w.Hash(context.Background(), "x"); !errors.Is(err, ErrBusy) {
			t.Errorf("Hash with a full queue: %v", err)
		}
		if s := w.Stats(); s.Refused != 2 {
			t.Errorf("%d refused, want 2", s.Refused)
		}
		release()
		waiting.Wait()
		if _, err := w.Hash(context.Background(), "x"); err != nil {
			t.Errorf("with an empty queue: %v", err)
		}
	})
}

func TestWaitingEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkers(Options{Workers: 1, Queue: 4, Params: cheap})
		defer w.Close()
		release := block(w, 1)
		defer release()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		ran := false
		start := time.Now()
		if err := w.do(ctx, func() { ran = true }); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := w.do(ctx, func() { ran = true }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with an ended context: %v", err)
		}
		release()
		if err := w.do(context.Background(), func() {}); err != nil {
			t.Error(err)
		}
		if ran {
			t.Error("a worker did the work of a caller who had left")
		}
	})
}

func TestClose(t *testing.T) {
	w := NewWorkers(Options{Workers: 1, Queue: 8, Params: cheap})
	release := block(w, 1)
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			if err := w.do(context.Background(), func() {}); err != nil && err != ErrClosed {
				t.Error(err)
			}
		})
	}
	release()
	w.Close()
	waiting.Wait()
	w.Close()
	if _, err := w.Hash(context.Background(), "x"); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

func TestPanicIsAnError(t *testing.T) {
	w := NewWorkers(Options{Workers: 1, Params: cheap})
	defer w.Close()
	if err := w.do(context.Background(), func() { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("a panic gives %v", err)
	}
	if _, err := w.Hash(context.Background(), "x"); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	w := NewWorkers(Options{Workers: 2, Queue: 4, Params: cheap})
	defer w.Close()
	await.Together(16, func(int) {
		for i := range 8 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond)
			ok, _, err := w.Check(ctx, bcryptVector, "U*U")
			if err == nil && !ok || err != nil && !errors.Is(err, ErrBusy) {
				t.Error(ok, err)
			}
			cancel()
		}
	})
}

func TestWorkers_logNothing(t *testing.T) {
	var log bytes.Buffer
	w := NewWorkers(Options{Workers: 2, Params: cheap, Log: slog.New(slog.NewTextHandler(&log, nil))})
	w.Hash(context.Background(), "sesame")
	w.Close()
	if log.Len() > 0 {
		t.Errorf("logged %s", &log)
	}
}

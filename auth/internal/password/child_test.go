package password

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
)

// children are what the test binary can be when it is started as a child, by the argument that says which.
var children = map[string]func() error{
	"good":    func() error { return Serve(os.Stdin, os.Stdout) },
	"owner":   owner,
	"stopped": func() error { return errors.New("no memory, say") },
	// These say that they are ready, read requests, and ...
	"mortal": func() error { return ready(func(frame) bool { return false }) },
	"asleep": func() error { return ready(func(frame) bool { return true }) },
	"liar": func() error {
		return ready(func(f frame) bool {
			os.Stdout.Write(appendResponse(nil, f.number+1, response{kind: saysRight}))
			return true
		})
	},
	"pairs": func() error { // answers two requests when it has both
		var numbers []uint32
		return ready(func(f frame) bool {
			if numbers = append(numbers, f.number); len(numbers) == 2 {
				for _, n := range numbers {
					os.Stdout.Write(appendResponse(nil, n, response{kind: saysRight}))
				}
				numbers = nil
			}
			return true
		})
	},
	"weary": func() error { // dies of the second request
		n := 0
		return ready(func(f frame) bool {
			n++
			q, _ := f.decode()
			os.Stdout.Write(appendResponse(nil, f.number, q.answer()))
			return n < 2
		})
	},
	"refused": func() error {
		hello := make([]byte, len(greeting)+2)
		io.ReadFull(os.Stdin, hello)
		os.Stdout.Write(appendResponse(nil, 0, response{saysReady, "not allowed"}))
		s := service{in: os.Stdin, out: os.Stdout}
		return s.work()
	},
}

func ready(each func(frame) bool) error {
	hello := make([]byte, len(greeting)+2)
	io.ReadFull(os.Stdin, hello)
	os.Stdout.Write(appendResponse(nil, 0, response{kind: saysReady}))
	for {
		f, err := readFrame(os.Stdin, nil)
		if err != nil || !each(f) {
			return err
		}
	}
}

// childOf makes commands of such children.
func childOf(kind string) func() *exec.Cmd {
	return func() *exec.Cmd {
		return &exec.Cmd{Path: os.Args[0], Args: []string{"password.test", "hashing", kind},
			Env: []string{"GORACE=atexit_sleep_ms=10"}}
	}
}

// journal is a log that a test reads.
type journal struct{ logtest.Buffer }

func (j *journal) lines() []string {
	return strings.Split(strings.TrimSuffix(j.String(), "\n"), "\n")
}

// withChild are workers with such a child, and their log.
func withChild(t *testing.T, kind string, workers int) (*Workers, *journal) {
	t.Helper()
	j := &journal{}
	w := NewWorkers(Options{Workers: workers, Params: cheap, Child: childOf(kind),
		Log: slog.New(slog.NewTextHandler(j, nil))})
	t.Cleanup(w.Close)
	return w, j
}

// right fails the test unless the workers know a right password from a wrong one.
func right(t *testing.T, w *Workers) {
	t.Helper()
	ok, _, err := w.Check(context.Background(), bcryptVector, "U*U")
	wrong, _, err2 := w.Check(context.Background(), bcryptVector, "U*V")
	if !ok || wrong || err != nil || err2 != nil {
		t.Errorf("right %v, %v; wrong %v, %v", ok, err, wrong, err2)
	}
}

// pid is the child's process id.
func (w *Workers) pid() int {
	w.child.mu.Lock()
	defer w.child.mu.Unlock()
	if w.child.now == nil {
		return 0
	}
	return w.child.now.cmd.Process.Pid
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestChildStartsWithTheFirstHash(t *testing.T) {
	w, log := withChild(t, "good", 2)
	if w.pid() != 0 {
		t.Error("it is there before anything is asked")
	}
	right(t, w)
	first := w.pid()
	right(t, w)
	if w.pid() != first || first == 0 {
		t.Errorf("first process %d, then %d", first, w.pid())
	}
	w.Close()
	if text := log.lines(); text[0] != "" {
		t.Errorf("logged %q", text)
	}
}

// Whatever kills it, the next one does the work, and pending requests are sent again.
func TestChildKilled(t *testing.T) {
	w, log := withChild(t, "good", 2)
	right(t, w)
	first := w.pid()
	kill(t, first) // with nothing to do
	right(t, w)
	if w.pid() == first {
		t.Error("no other process took its place")
	}
	lines := log.lines()
	if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") ||
		!strings.Contains(lines[0], "the process for hashing has ended") ||
		!strings.Contains(lines[0], "signal: killed") {
		t.Errorf("logged %q", lines)
	}
}

func TestChildKilledDuringARequest(t *testing.T) {
	kinds := []string{"asleep", "good"}
	w := NewWorkers(Options{Workers: 2, Params: cheap, Log: slog.New(slog.DiscardHandler), Child: func() *exec.Cmd {
		kind := kinds[0]
		kinds = kinds[1:]
		return childOf(kind)()
	}})
	defer w.Close()
	p, _, err := w.child.running()
	must.Succeed(t, err)
	type result struct {
		ok  bool
		err error
	}
	results := make(chan result)
	for range 2 {
		go func() {
			ok, _, err := w.Check(context.Background(), bcryptVector, "U*U")
			results <- result{ok, err}
		}()
	}
	await.True(t, "two questions wait", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting) == 2
	})
	kill(t, w.pid())
	for range 2 {
		if r := <-results; !r.ok || r.err != nil {
			t.Errorf("%v, %v", r.ok, r.err)
		}
	}
}

// A request that kills every child is sent twice.
func TestChildDiesOfEachRequest(t *testing.T) {
	w, log := withChild(t, "mortal", 1)
	var busy *Busy
	if _, err := w.Hash(context.Background(), "x"); !errors.As(err, &busy) || busy.RetryAfter != time.Second {
		t.Errorf("%v; want a *Busy of a second", err)
	}
	if n := len(log.lines()); n != 2 {
		t.Errorf("%d children:\n%s", n, strings.Join(log.lines(), "\n"))
	}
	w.child.mu.Lock()
	w.child.resume = time.Now().Add(90 * time.Second)
	w.child.mu.Unlock()
	if _, err := w.Hash(context.Background(), "x"); !errors.As(err, &busy) ||
		busy.RetryAfter <= time.Minute || busy.RetryAfter > 90*time.Second {
		t.Errorf("%v; want a *Busy until the pause is over", err)
	}
	if n := len(log.lines()); n != 2 {
		t.Errorf("%d children, one of them within the pause", n)
	}
	if w.child.threads != nil {
		t.Error("no more children, though each was ready")
	}
}

// A child has the next request before it has answered the last, so that its workers never wait for one.
func TestChildHasTheNextRequest(t *testing.T) {
	w, _ := withChild(t, "pairs", 1)
	await.Together(2, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if ok, _, err := w.Check(ctx, bcryptVector, "U*U"); !ok || err != nil {
			t.Error(ok, err)
		}
	})
	w.running.Add(2)
	defer w.running.Add(-2)
	if s := w.Stats(); s.Running != 1 || s.Waiting != 1 {
		t.Errorf("%+v: of two that a child has for one worker, one waits", s)
	}
}

// The first of a row costs no pause, each further one twice the one before.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &child{}
		f := func(lived, want time.Duration) {
			t.Helper()
			c.note(time.Now().Add(-lived))
			if have := max(0, time.Until(c.resume)); have != want {
				t.Errorf("a pause of %v, want %v", have, want)
			}
			time.Sleep(want)
		}
		f(0, 0)
		for pause := firstPause; pause < lastPause; pause *= 2 {
			f(steady, pause)
		}
		f(0, lastPause)
		f(0, lastPause)
		f(steady+1, 0)
		f(0, firstPause)
		for range 70 {
			c.note(time.Now())
		}
		f(0, lastPause)
	})
}

func TestChildDiesSometimes(t *testing.T) {
	w, log := withChild(t, "weary", 1)
	for range 3 {
		right(t, w) // two requests: a child's life
		w.child.mu.Lock()
		w.child.short = 0
		w.child.mu.Unlock()
	}
	if n := len(log.lines()); n != 2 {
		t.Errorf("%d lines: %q", n, log.lines())
	}
}

func TestChildThatDoesNotAnswer(t *testing.T) {
	for _, kind := range []string{"asleep", "liar"} {
		w := NewWorkers(Options{Workers: 1, Params: cheap, Child: childOf(kind), Log: slog.New(slog.DiscardHandler),
			patience: 100 * time.Millisecond})
		if _, err := w.Hash(context.Background(), "x"); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: %v, want ErrBusy", kind, err)
		}
		w.Close()
	}
}

// Where there can be no child, threads hash, and the log says so once.
func TestNoChild(t *testing.T) {
	f := func(name string, child func() *exec.Cmd, refusals int, want string) {
		t.Helper()
		j := &journal{}
		w := NewWorkers(Options{Workers: 2, Params: cheap, Child: child, Log: slog.New(slog.NewTextHandler(j, nil))})
		defer w.Close()
		for range refusals {
			if _, err := w.Hash(context.Background(), "x"); !errors.Is(err, ErrBusy) {
				t.Errorf("%s: %v, want ErrBusy", name, err)
			}
			w.child.mu.Lock()
			w.child.resume = time.Time{}
			w.child.mu.Unlock()
		}
		right(t, w)
		right(t, w)
		lines := j.lines()
		if last := lines[len(lines)-1]; len(lines) != refusals+1 ||
			!strings.Contains(last, "threads of this one hash") ||
			!strings.Contains(last, want) {
			t.Errorf("%s: logged %q, want %s", name, lines, want)
		}
	}
	f("no such program", func() *exec.Cmd { return &exec.Cmd{Path: "/no/such/program"} }, 0, "no such file")
	f("not a program", func() *exec.Cmd { return &exec.Cmd{Path: "/"} }, 0, "permission denied")
	f("path unknown", func() *exec.Cmd { return &exec.Cmd{Err: exec.ErrDot} }, 2, "current directory")
	f("ends at once", childOf("stopped"), hopeless-1, "exit status 1: no memory, say")
}

func TestChildRefusedPriorityIsLoggedOnce(t *testing.T) {
	w, log := withChild(t, "refused", 2)
	right(t, w)
	kill(t, w.pid())
	right(t, w)
	n := strings.Count(strings.Join(log.lines(), "\n"), normalPriority+`" error="not allowed"`)
	if n != 1 {
		t.Errorf("%d times:\n%s", n, strings.Join(log.lines(), "\n"))
	}
}

func TestCloseWithChild(t *testing.T) {
	w, _ := withChild(t, "good", 2)
	right(t, w)
	p := w.child.now
	w.Close()
	select {
	case <-p.gone:
	default:
		t.Error("it outlives Close")
	}
	if p.err != nil {
		t.Errorf("it ended with %v", p.err)
	}
	if _, err := w.Hash(context.Background(), "x"); err != ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

// owner is a process with a child; it says the child's id and waits to be killed.
func owner() error {
	w := NewWorkers(Options{Workers: 1, Params: cheap, Child: childOf("good")})
	if _, err := w.Hash(context.Background(), "x"); err != nil {
		return err
	}
	hash, err := Params{cost: 8}.hash([]byte("x"))
	if err != nil {
		return err
	}
	go w.Check(context.Background(), hash, "x") // killed with work in hand
	fmt.Println(w.pid())
	select {}
}

func TestChildEndsWithItsOwner(t *testing.T) {
	cmd := childOf("owner")()
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	cmd.Process.Kill()
	cmd.Wait()
	must.Succeed(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			kill(t, pid)
		}
	})
	await.True(t, "the child ends with its owner", func() bool { return !alive(pid) })
}

// alive reports whether a process exists that could still answer.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// A standard input that is no pipe, or that sends something else, comes from no daemon.
func TestServe_withoutDaemon(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must.Succeed(t, err)
	defer null.Close()
	r, w, err := os.Pipe()
	must.Succeed(t, err)
	defer r.Close()
	if err := Serve(null, w); err != ErrByHand {
		t.Errorf("a file: %v", err)
	}
	fmt.Fprintln(w, "correct horse battery staple")
	if err := Serve(r, w); err != ErrByHand {
		t.Errorf("another greeting: %v", err)
	}
	w.Close()
	if err := Serve(r, w); err != ErrByHand {
		t.Errorf("nothing: %v", err)
	}
}

func TestFrames(t *testing.T) {
	f := func(q request) {
		t.Helper()
		wire := appendRequest(nil, 7, q)
		back, err := readFrame(bytes.NewReader(wire), nil)
		must.Succeed(t, err)
		if have, ok := back.decode(); !ok || back.number != 7 || have.kind != q.kind ||
			have.text != q.text || string(have.password) != string(q.password) {
			t.Errorf("%v became %v", q, have)
		}
		for n := range wire {
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = io.EOF
			}
			if _, err := readFrame(bytes.NewReader(wire[:n]), nil); err != want {
				t.Fatalf("%d of %d bytes: %v, want %v", n, len(wire), err, want)
			}
		}
	}
	f(request{opHash, "bcrypt:10", []byte("correct horse")})
	f(request{opCheck, bcryptVector, nil})
	f(request{kind: 0})
	if _, err := readFrame(bytes.NewReader([]byte("\x00\x30\x00\x00aaaaaaa")), nil); err == nil {
		t.Error("3 MiB are read")
	}
	if _, err := readFrame(bytes.NewReader([]byte("\x00\x00\x00\x04aaaaaaa")), nil); err == nil {
		t.Error("4 bytes are a frame")
	}
	if a := (request{kind: 'x'}).answer(); a.kind != saysFailed {
		t.Errorf("a question of no kind is answered %v", a)
	}
}

// What was sent is wiped, and what a frame held when it has been answered.
func TestFramesAreWiped(t *testing.T) {
	wire := appendRequest(nil, 1, request{opCheck, bcryptVector, []byte("U*U")})
	in := &keeping{r: bytes.NewReader(bytes.Clone(wire))}
	s := service{in: in, out: io.Discard}
	must.Succeed(t, s.work())
	r, w, err := os.Pipe()
	must.Succeed(t, err)
	defer r.Close()
	defer w.Close()
	must.Succeed(t, (&process{in: w}).write(wire))
	for _, b := range append(in.seen, wire) {
		if bytes.Contains(b, []byte("U*U")) {
			t.Errorf("%q is left", b)
		}
	}
}

// keeping is a reader that records the buffers it has read into.
type keeping struct {
	r    io.Reader
	seen [][]byte
}

func (k *keeping) Read(b []byte) (int, error) {
	n, err := k.r.Read(b)
	k.seen = append(k.seen, b)
	return n, err
}

// No bytes from outside make either side panic, keep what they shouldn't, or take more memory than they bring.
func FuzzFrame(f *testing.F) {
	f.Add(appendRequest(nil, 1, request{opHash, "bcrypt:4", []byte("correct horse")}))
	f.Add(appendRequest(nil, 2, request{opCheck, bcryptVector, []byte("U*U")}))
	f.Add(appendResponse(nil, 3, response{saysHash, bcryptVector}))
	f.Add(appendResponse(appendResponse(nil, 0, response{saysReady, "refused"}), 4, response{kind: saysRight}))
	f.Add([]byte("\x00\x00\x00\x06\x00\x00\x00\x01c\xff"))
	f.Add([]byte("\x00\x20\x00\x00\x00\x00\x00\x01cshort"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		for {
			at := len(wire) - r.Len()
			frame, err := readFrame(r, make([]byte, 16))
			if err != nil {
				return
			}
			used := wire[at : len(wire)-r.Len()]
			if again := appendResponse(nil, frame.number, frame.answer()); !bytes.Equal(again, used) {
				t.Fatalf("%q became %q", used, again)
			}
			if q, ok := frame.decode(); ok {
				if again := appendRequest(nil, frame.number, q); !bytes.Equal(again, used) {
					t.Fatalf("%q became the question %q", used, again)
				}
			}
		}
	})
}

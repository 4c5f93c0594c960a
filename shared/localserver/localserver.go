// Package localserver starts private real servers for tests, measurements and make run: on a free loopback port or a
// unix socket, with a folder of their own, which is removed when their owner ends.
//
// It installs nothing and knows no test framework (see testdb). A kind of server is one file with a plan. Outside Linux
// a server outlives a program that is killed.
package localserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"gatehouse/shared/subprocess"
)

// ErrMissing: the server's program is not on this machine.
var ErrMissing = errors.New("localserver: program not found")

const (
	// startTimeout is how long a server may take until it answers.
	startTimeout = 10 * time.Second
	// stopTimeout is how long a server may take to end by itself.
	stopTimeout = 5 * time.Second
)

// plan says how to run one kind of server.
type plan struct {
	program string
	// parent is where the server's folder is made; empty for os.TempDir.
	parent string
	// prepare writes the program's files into dir and returns its arguments. port is 0 when the server listens only on
	// a unix socket.
	prepare func(dir string, port int) (args []string, err error)
	// socket is the unix socket's name in dir; empty for TCP.
	socket string
	// ready checks once whether the server works.
	ready func(ctx context.Context, network, addr string) error
	// credential is the user that runs the program; nil: the present user.
	credential *syscall.Credential
	// quit requests a clean shutdown; 0: SIGTERM.
	quit syscall.Signal
	// family returns the processes of the server in dir besides its first one; nil: there are none.
	family func(dir string) []int
	// files reports that the running server needs its folder.
	files bool
}

// Server is one running program. Its methods may be called from any goroutine.
type Server struct {
	plan          plan
	dir           string
	network, addr string
	port          int

	mu   sync.Mutex // guards cmd and done while the server is restarted
	cmd  *exec.Cmd
	done <-chan struct{} // closed when the present process has ended
	log  *os.File

	hold *os.File // see Forget; never closed, or the folder would be removed
}

// start runs a plan in a fresh folder. If a port is taken between the check and the server's bind, it tries another
// port.
func start(ctx context.Context, p plan) (*Server, error) {
	dir, err := os.MkdirTemp(p.parent, "gatehouse-"+p.program+"-")
	if err != nil {
		return nil, fmt.Errorf("localserver: %w", err)
	}
	for range 5 {
		s := &Server{plan: p, dir: dir, network: "unix", addr: filepath.Join(dir, p.socket)}
		if p.socket == "" {
			if s.port, err = freePort(); err != nil {
				break
			}
			s.network, s.addr = "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
		}
		if err = s.run(ctx); err == nil {
			return s, nil
		}
		if errors.Is(err, ErrMissing) || ctx.Err() != nil {
			break
		}
	}
	os.RemoveAll(dir)
	return nil, err
}

// FreePorts returns TCP ports of 127.0.0.1 that had no listener a moment ago.
func FreePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("localserver: %w", err)
		}
		defer l.Close() // all are held until the last is found, so that none is found twice
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

func freePort() (int, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(ports[0])
}

// run starts the process and waits until it answers.
func (s *Server) run(ctx context.Context) error {
	path, err := Find(s.plan.program)
	if err != nil {
		return err
	}
	args, err := s.plan.prepare(s.dir, s.port)
	if err != nil {
		return fmt.Errorf("localserver: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("localserver: %w", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.plan.credential}
	process, err := subprocess.Start(cmd)
	if err != nil {
		log.Close()
		return fmt.Errorf("localserver: %w", err)
	}
	done := process.Ended()
	s.mu.Lock()
	if s.log != nil {
		s.log.Close()
	}
	s.cmd, s.done, s.log = cmd, done, log
	s.mu.Unlock()
	if err := s.await(ctx, done); err != nil {
		s.Kill()
		err = fmt.Errorf("localserver: %s: %w; its last words: %s", s.plan.program, err, s.lastWords())
		log.Close()
		return err
	}
	return nil
}

// await checks for readiness until the server answers or ends, or the time is up.
func (s *Server) await(ctx context.Context, done <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := s.plan.ready(ctx, s.network, s.addr)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return errors.New("ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w", err)
		case <-time.After(pause):
		}
	}
}

// lastWords returns the end of the server's output.
func (s *Server) lastWords() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := s.log.Stat()
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(io.NewSectionReader(s.log, max(0, info.Size()-2000), 2000))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Network returns "tcp" or "unix".
func (s *Server) Network() string { return s.network }

// Addr returns host:port, or the unix socket's path. It stays the same after Restart.
func (s *Server) Addr() string { return s.addr }

// Dir returns the server's folder.
func (s *Server) Dir() string { return s.dir }

// PID returns the id of the process started last.
func (s *Server) PID() int {
	cmd, _ := s.process()
	return cmd.Process.Pid
}

// Ended is closed when the process started last has ended.
func (s *Server) Ended() <-chan struct{} {
	_, done := s.process()
	return done
}

func (s *Server) process() (*exec.Cmd, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd, s.done
}

// Kill ends the server as kill -9 does and waits for its end. It has no effect on an ended server.
func (s *Server) Kill() {
	cmd, done := s.process()
	cmd.Process.Kill() // fails only if the process has already ended
	<-done
	// The other processes would notice, but not at once, and a stopped one never.
	for pids := s.family(); len(pids) > 0; pids = s.family() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL) // the process may already have ended
		}
		time.Sleep(time.Millisecond)
	}
}

// family returns every process of the server but the first.
func (s *Server) family() []int {
	if s.plan.family == nil {
		return nil
	}
	first := s.PID()
	return slices.DeleteFunc(s.plan.family(s.dir), func(pid int) bool { return pid == first })
}

// Stop freezes the server (SIGSTOP): connections stay open, and nothing is answered once Stop returns.
func (s *Server) Stop() error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitFrozen(func() []int { return append(s.family(), s.PID()) })
}

// Cont lets a stopped server go on (SIGCONT).
func (s *Server) Cont() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	cmd, _ := s.process()
	if err := cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("localserver: %s: %w", s.plan.program, err)
	}
	for _, pid := range s.family() {
		syscall.Kill(pid, sig) // the process may have ended meanwhile
	}
	return nil
}

// Restart kills the server if it still runs and starts it again at the same address.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return s.run(ctx)
}

// Close ends the server cleanly, by force after five seconds, and removes its folder.
func (s *Server) Close() {
	cmd, done := s.process()
	cmd.Process.Signal(cmp.Or(s.plan.quit, syscall.SIGTERM))
	s.Cont() // a stopped server would not notice its end
	select {
	case <-done:
	case <-time.After(stopTimeout):
		s.Kill()
	}
	s.mu.Lock()
	s.log.Close()
	s.mu.Unlock()
	os.RemoveAll(s.dir)
}

// Forget is for a server that is not closed because it ends with the program. It gives the server's folder up: the
// folder is removed at once or, where the server needs its files, when this process has ended in whatever way. It is
// not for Redis on a unix socket.
func (s *Server) Forget() error {
	if !s.plan.files {
		return os.RemoveAll(s.dir)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("localserver: %w", err)
	}
	defer r.Close()
	// Our end of the pipe closes when this process ends, and then cat ends. The pause is for the server's last
	// children.
	cmd := exec.Command("/bin/sh", "-c", `cat; sleep 1; rm -rf "$0" || { sleep 5; rm -rf "$0"; }`, s.dir)
	cmd.Dir, cmd.Stdin = "/", r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("localserver: %w", err)
	}
	s.hold = w
	return nil
}

// Package localserver starts real servers for tests, measurements and make run. Each listens on a free loopback port or
// on a unix socket, and has a folder of its own, which is removed when its owner ends.
//
// The package installs nothing, and can be used without package testing; package testdb adds what tests need. There is
// one file, with a plan, for each kind of server. Outside Linux, servers outlive a program that is killed.
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

// ErrMissing is the error for a server whose program is not installed on this machine.
var ErrMissing = errors.New("localserver: program not found")

const (
	// startTimeout is how long a server may take until it answers.
	startTimeout = 10 * time.Second
	// stopTimeout is how long a server may take to end by itself before it is killed.
	stopTimeout = 5 * time.Second
)

// plan says how to run one kind of server.
type plan struct {
	program string
	// parent is the folder in which the server's folder is made; empty means os.TempDir.
	parent string
	// prepare writes the program's files into dir and returns its arguments. port is 0 if the server listens on a unix
	// socket only.
	prepare func(dir string, port int) (args []string, err error)
	// socket is the name of the unix socket in dir; empty if the server listens on TCP.
	socket string
	// ready tries once whether the server answers at an address.
	ready func(ctx context.Context, network, addr string) error
	// credential is the user as which the program runs; nil means the present user.
	credential *syscall.Credential
	// quit is the signal that requests a clean shutdown; 0 means SIGTERM.
	quit syscall.Signal
	// family returns the process ids of all further processes of the server whose folder is dir; nil if there are none.
	family func(dir string) []int
	// files is set if the running server needs the files in its folder.
	files bool
}

// Server is one running server. Its methods may be called from any goroutine.
type Server struct {
	plan          plan
	dir           string
	network, addr string
	port          int

	mu   sync.Mutex // guards cmd and done while the server is restarted
	cmd  *exec.Cmd
	done <-chan struct{} // closed when the present process has ended
	log  *os.File

	hold *os.File // kept open by Forget: the folder is removed when it closes
}

// start runs a server in a new folder, as the plan says. It tries another port if another program takes the port
// between the check and the server's bind.
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

// FreePorts returns n TCP ports of 127.0.0.1 on which nothing listened a moment ago.
func FreePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("localserver: %w", err)
		}
		defer l.Close() // all stay open until the last is found, so that no port is found twice
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

// run starts the process and waits until the server answers.
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

// await returns nil as soon as the server answers. It returns an error if the server ends, or if startTimeout passes,
// before it has answered.
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

// lastWords returns the end of the server's output, for error messages.
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

// Addr returns host:port, or the path of the unix socket. Restart does not change it.
func (s *Server) Addr() string { return s.addr }

// Dir returns the server's folder.
func (s *Server) Dir() string { return s.dir }

// PID returns the id of the process that was started last.
func (s *Server) PID() int {
	cmd, _ := s.process()
	return cmd.Process.Pid
}

// Ended returns a channel that is closed when the process that was started last has ended.
func (s *Server) Ended() <-chan struct{} {
	_, done := s.process()
	return done
}

func (s *Server) process() (*exec.Cmd, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd, s.done
}

// Kill ends the server at once with SIGKILL and waits for its end. It does nothing if the server has ended.
func (s *Server) Kill() {
	cmd, done := s.process()
	cmd.Process.Kill() // an error means that the process has already ended
	<-done
	// Kill the server's other processes too: they would end by themselves, but not at once, and not if they are
	// stopped.
	for pids := s.family(); len(pids) > 0; pids = s.family() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL) // an error means that the process has already ended
		}
		time.Sleep(time.Millisecond)
	}
}

// family returns the ids of all the server's processes except the first.
func (s *Server) family() []int {
	if s.plan.family == nil {
		return nil
	}
	first := s.PID()
	return slices.DeleteFunc(s.plan.family(s.dir), func(pid int) bool { return pid == first })
}

// Stop freezes the server with SIGSTOP: connections stay open, but when Stop has returned, nothing is answered.
func (s *Server) Stop() error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitFrozen(func() []int { return append(s.family(), s.PID()) })
}

// Cont lets a frozen server continue, with SIGCONT.
func (s *Server) Cont() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	cmd, _ := s.process()
	if err := cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("localserver: %s: %w", s.plan.program, err)
	}
	for _, pid := range s.family() {
		syscall.Kill(pid, sig) // an error means that the process has ended meanwhile
	}
	return nil
}

// Restart kills the server if it is running and starts it again at the same address.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return s.run(ctx)
}

// Close ends the server cleanly, or kills it after stopTimeout, and removes its folder.
func (s *Server) Close() {
	cmd, done := s.process()
	cmd.Process.Signal(cmp.Or(s.plan.quit, syscall.SIGTERM))
	s.Cont() // a frozen server would not notice the signal
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

// Forget is for a server that is not closed by its owner because it ends with the owner's process. It arranges that the
// server's folder is removed: at once or, if the server needs its files, when this process has ended, in whatever way.
// It is not for a Redis on a unix socket.
func (s *Server) Forget() error {
	if !s.plan.files {
		return os.RemoveAll(s.dir)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("localserver: %w", err)
	}
	defer r.Close()
	// The write end of the pipe closes when this process ends, upon which cat ends. The pause is for the last of the
	// server's processes to end.
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

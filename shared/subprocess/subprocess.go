// Package subprocess runs programs of this repository for the program that needs them (make run, bench, tests): a child
// is stopped by its process id, cleanly, and ends with its owner, in whatever way the owner ends.
//
// It does not know when a program is ready, and does not start it again. Outside Linux a child outlives an owner that
// is killed.
package subprocess

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is one running child. Its methods may be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended; written before done is closed
}

// Start starts cmd in a process group of its own, so that Ctrl-C reaches only the owner, and the owner decides the
// order of ending. Other fields of cmd.SysProcAttr stay unchanged.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	endWithParent(cmd.SysProcAttr)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.watch(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("subprocess: %w", err)
	}
	return p, nil
}

// watch starts the program and waits for its end on one thread. The kernel reports the parent's death to a child when
// the thread that forked ends, not the process, so that thread must live as long as the child. Since it is locked, it
// ends together with this function.
func (p *Process) watch(started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
	close(p.done)
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the child has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// Signal sends a signal. An error means that the child has already ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Stop sends SIGTERM and, after grace, SIGKILL, and waits. It returns how the child ended: nil for exit status 0. A
// child that had ended before is reported the same way.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("subprocess: %w", err)
	}
	select {
	case <-p.done:
	case <-time.After(grace):
		p.cmd.Process.Kill() // fails only when it has just ended
		<-p.done
	}
	if p.err != nil {
		return fmt.Errorf("subprocess: %s: %w", p.cmd.Path, p.err)
	}
	return nil
}

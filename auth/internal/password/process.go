package password

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

const (
	// startPatience is how long a child may take to report that it is ready.
	startPatience = 30 * time.Second
	// replyTimeout is how long one response may take. The most expensive hash takes two seconds of processor time, and
	// a child gets only time that is otherwise idle. A child that takes longer is killed.
	replyTimeout = 2 * time.Minute
	// stopTimeout is how long an idle child may take to end when it is stopped.
	stopTimeout = 5 * time.Second
)

// process is one running child process.
type process struct {
	cmd      *exec.Cmd
	began    time.Time
	patience time.Duration
	problem  string // why its priority is not low; "" if it is
	out      *os.File
	last     lastWords

	writing sync.Mutex
	in      *os.File

	mu      sync.Mutex
	count   uint32
	waiting map[uint32]chan<- response

	gone chan struct{} // closed after cmd.Wait
	err  error         // how the process ended; written before gone is closed
}

// startProcess starts a child, and returns when the child is ready.
func startProcess(cmd *exec.Cmd, workers int, patience time.Duration) (*process, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		in.Close()
		theirIn.Close()
		return nil, err
	}
	p := &process{cmd: cmd, began: time.Now(), patience: patience, in: in, out: out,
		waiting: map[uint32]chan<- response{},
		gone:    make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, &p.last
	separate(cmd)
	err = cmd.Start()
	theirIn.Close() // this process's copies would keep the pipes open after the child's end
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	ready, err := p.greet(workers)
	if err != nil {
		cmd.Process.Kill() // fails if the child has ended already
		p.wait()
		return nil, fmt.Errorf("%w (%w)", err, p.err)
	}
	p.problem = ready.text
	go p.read()
	return p, nil
}

// greet sends the greeting to the child and waits for its response.
func (p *process) greet(workers int) (response, error) {
	deadline := time.Now().Add(startPatience)
	hello := binary.BigEndian.AppendUint16([]byte(greeting), uint16(workers))
	if err := errors.Join(p.in.SetDeadline(deadline), p.out.SetDeadline(deadline)); err != nil {
		return response{}, err
	}
	if _, err := p.in.Write(hello); err != nil {
		return response{}, err
	}
	f, err := readFrame(p.out, nil)
	if err == nil && f.kind != saysReady {
		err = f.answer().err()
	}
	if err != nil {
		return response{}, err
	}
	return f.answer(), errors.Join(p.in.SetDeadline(time.Time{}), p.out.SetDeadline(time.Time{}))
}

// read passes the child's responses to the callers that wait for them, until the child has ended.
func (p *process) read() {
	buf := make([]byte, 256)
	for {
		f, err := readFrame(p.out, buf)
		if err != nil {
			break
		}
		p.mu.Lock()
		to := p.waiting[f.number]
		delete(p.waiting, f.number)
		p.mu.Unlock()
		if to == nil {
			break // a response that belongs to no request
		}
		to <- f.answer() // never blocks: the channel has room
	}
	p.cmd.Process.Kill() // fails if the child has ended already
	p.wait()
}

func (p *process) wait() {
	p.err = p.cmd.Wait()
	if words := p.last.line(); words != "" {
		p.err = fmt.Errorf("%w: %s", p.err, words)
	}
	p.in.Close()
	p.out.Close()
	close(p.gone)
}

// errEnded is returned if the child ended before it answered.
var errEnded = errors.New("password: the process for hashing has ended")

// roundTrip sends a request to the child and waits for the response. If it returns an error, the child has ended.
func (p *process) roundTrip(q request) (response, error) {
	back := make(chan response, 1)
	p.mu.Lock()
	p.count++
	number := p.count
	p.waiting[number] = back
	p.mu.Unlock()

	late := time.AfterFunc(p.patience, func() { p.cmd.Process.Kill() }) // fails if the child has ended already
	defer late.Stop()
	if err := p.write(appendRequest(nil, number, q)); err != nil {
		p.cmd.Process.Kill()
	}
	select {
	case a := <-back:
		return a, nil
	case <-p.gone:
	}
	select {
	case a := <-back: // the child's last response
		return a, nil
	default:
		return response{}, errEnded
	}
}

// write sends a frame to the child and wipes it, since it may contain a password.
func (p *process) write(frame []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := p.in.Write(frame)
	clear(frame)
	return err
}

// stop ends an idle child and waits for its end.
func (p *process) stop() {
	p.in.Close()
	late := time.AfterFunc(stopTimeout, func() { p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.gone
}

// end waits until the child has ended, and returns how it ended.
func (p *process) end() error {
	<-p.gone
	return p.err
}

// lastWords keeps the beginning of a child's standard error. It stays empty unless Go's runtime reports a failure.
type lastWords struct{ text []byte }

func (l *lastWords) Write(b []byte) (int, error) {
	l.text = append(l.text, b[:min(len(b), 256-len(l.text))]...)
	return len(b), nil
}

// line returns the first line of what the child wrote. It may be called only after the child's end.
func (l *lastWords) line() string {
	line, _, _ := bytes.Cut(l.text, []byte("\n"))
	return string(line)
}

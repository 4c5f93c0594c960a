package password

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
)

// greeting is the first message to a child. Two bytes with the number of workers follow.
const greeting = "gatehouse hashing 1\n"

// ErrByHand is returned by Serve if a person and not a daemon has started the command.
var ErrByHand = errors.New("this command hashes passwords for a running daemon, which starts it itself")

// Serve runs in a hashing child. It lowers the priority of its process, reads requests from in and writes responses to
// out, which must both be pipes. It returns when in ends, which also happens if the daemon is killed. It prints nothing
// else. It sets GOMAXPROCS to the number of workers: argon2 computes in goroutines of its own, and no more threads than
// workers may compute.
func Serve(in, out *os.File) error {
	for _, f := range []*os.File{in, out} {
		if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
			return ErrByHand
		}
	}
	var hello [len(greeting) + 2]byte
	if _, err := io.ReadFull(in, hello[:]); err != nil || string(hello[:len(greeting)]) != greeting {
		return ErrByHand
	}
	workers := max(1, int(binary.BigEndian.Uint16(hello[len(greeting):])))
	err := lowProcess()
	runtime.GOMAXPROCS(workers)
	hide()
	s := service{in: in, out: out}
	ready := response{kind: saysReady}
	if err == nil {
		// Call it a second time, since a thread that was starting during the first call may have kept its priority.
		err = lowProcess()
	}
	if err != nil {
		ready.text = err.Error()
	}
	if err := s.write(0, ready); err != nil {
		return err
	}
	ended := make(chan error)
	for range workers {
		go func() { ended <- s.work() }() // the other workers end with the process
	}
	return <-ended
}

// service holds what the workers of a child share.
type service struct {
	reading sync.Mutex
	in      io.Reader
	writing sync.Mutex
	out     io.Writer
}

// work reads requests, computes, and writes responses until the input ends. It wipes each frame.
func (s *service) work() error {
	buf := make([]byte, 2<<10)
	for {
		s.reading.Lock()
		f, err := readFrame(s.in, buf)
		s.reading.Unlock()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		a := response{saysFailed, "password: a frame that is no question"}
		if q, ok := f.decode(); ok {
			a = q.answer()
		}
		clear(f.body)
		if err := s.write(f.number, a); err != nil {
			return err
		}
	}
}

func (s *service) write(number uint32, a response) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.out.Write(appendResponse(nil, number, a))
	return err
}

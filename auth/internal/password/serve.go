package password

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
)

// greeting begins the conversation; two bytes with the number of workers follow.
const greeting = "gatehouse hashing 1\n"

// ErrByHand is the error of Serve if it was not started by a daemon.
var ErrByHand = errors.New("this command hashes passwords for a running daemon, which starts it itself")

// Serve runs a hashing child. It lowers the priority of its process, reads requests from in and writes responses to
// out, both pipes, and returns when in ends, also if the daemon was killed. It prints nothing else. It sets GOMAXPROCS,
// since argon2 computes in goroutines of its own, and no more threads may compute than there are workers.
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
		// again: a thread that was starting during the first call may have kept its priority
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

// service has what a child's workers share.
type service struct {
	reading sync.Mutex
	in      io.Reader
	writing sync.Mutex
	out     io.Writer
}

// work reads requests, computes and writes responses until the input ends. It wipes each frame.
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

package password

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// request is a job for a worker, in this process or in a child process.
type request struct {
	kind     byte
	text     string
	password []byte
}

const (
	opHash  byte = 'h' // text is the parameters, as ParseParams reads them
	opCheck byte = 'c' // text is the hash to compare with
)

type response struct {
	kind byte
	text string
}

const (
	saysReady  byte = 'R' // a child's first message; text says why its priority is not low, "" if it is low
	saysHash   byte = 'H' // text is the new hash
	saysRight  byte = 'Y'
	saysWrong  byte = 'N'
	saysFailed byte = 'F' // text says why
)

// err returns nil if the response is of the expected kind, and otherwise the error that it stands for.
func (a response) err() error {
	if a.kind == saysFailed {
		return errors.New(a.text)
	}
	return fmt.Errorf("password: an answer of the kind %q", a.kind)
}

// answer computes the response to a request. A panic during the computation does not end the process.
func (q request) answer() (a response) {
	defer func() {
		if r := recover(); r != nil {
			a = response{saysFailed, fmt.Sprintf("password: panic: %v", r)}
		}
	}()
	a, err := q.compute()
	if err != nil {
		return response{saysFailed, err.Error()}
	}
	return a
}

func (q request) compute() (response, error) {
	switch q.kind {
	case opHash:
		p, err := ParseParams(q.text)
		if err != nil {
			return response{}, err
		}
		hash, err := p.hash(q.password)
		return response{saysHash, hash}, err
	case opCheck:
		h, err := parse(q.text)
		if err != nil {
			return response{}, err
		}
		right, err := h.check(q.password)
		if err != nil {
			return response{}, err
		}
		if right {
			return response{kind: saysRight}, nil
		}
		return response{kind: saysWrong}, nil
	}
	return response{}, fmt.Errorf("password: a question of the kind %q", q.kind)
}

// frame is a message between a hashing child and the process that started it. It has four bytes for the length of the
// rest, four bytes for a number that is the same in a request and its response, one byte for the kind, and the body.
// The body of a request is two bytes for the length of its text, the text and the password. The body of a response is
// its text. Numbers are big-endian.
type frame struct {
	number uint32
	kind   byte
	body   []byte
}

const (
	frameHead = 4 + 5
	// maxFrame is the maximum length of a frame that is read: a password may fill the largest body of an HTTP request,
	// 1 MiB.
	maxFrame = 2 << 20
)

func appendRequest(b []byte, number uint32, q request) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(5+2+len(q.text)+len(q.password)))
	b = append(binary.BigEndian.AppendUint32(b, number), q.kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(q.text)))
	return append(append(b, q.text...), q.password...)
}

func appendResponse(b []byte, number uint32, a response) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(5+len(a.text)))
	b = append(binary.BigEndian.AppendUint32(b, number), a.kind)
	return append(b, a.text...)
}

// readFrame reads one frame into buf, or into a larger buffer if buf is too small. It returns io.EOF only if the input
// ends between two frames.
func readFrame(r io.Reader, buf []byte) (frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 5 || n > maxFrame {
		return frame{}, fmt.Errorf("password: a frame of %d bytes; they have 5 to %d", n, maxFrame)
	}
	n -= 5
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	f := frame{binary.BigEndian.Uint32(head[4:]), head[8], buf[:n]}
	if _, err := io.ReadFull(r, f.body); err != nil {
		return frame{}, io.ErrUnexpectedEOF
	}
	return f, nil
}

// decode reads a request from a frame. The password is a part of the frame's memory.
func (f frame) decode() (q request, ok bool) {
	if len(f.body) < 2 {
		return request{}, false
	}
	n, rest := int(binary.BigEndian.Uint16(f.body)), f.body[2:]
	if n > len(rest) {
		return request{}, false
	}
	return request{f.kind, string(rest[:n]), rest[n:]}, true
}

func (f frame) answer() response { return response{f.kind, string(f.body)} }

package password

import (
	"errors"
	"fmt"
)

// request is a job of a worker, in this process or a child.
type request struct {
	kind     byte
	text     string
	password []byte
}

const (
	opHash  byte = 'h' // the text is the parameters, as ParseParams reads them
	opCheck byte = 'c' // the text is the hash
)

type response struct {
	kind byte
	text string
}

const (
	saysReady  byte = 'R' // a child's first message; the text says why its priority is not low, "" if it is
	saysHash   byte = 'H' // the text is the hash
	saysRight  byte = 'Y'
	saysWrong  byte = 'N'
	saysFailed byte = 'F' // the text says why
)

// err returns the response as an error, if it is not of the expected kind.
func (a response) err() error {
	if a.kind == saysFailed {
		return errors.New(a.text)
	}
	return fmt.Errorf("password: an answer of the kind %q", a.kind)
}

// answer computes the response. A panic during the computation does not end the process.
func (q request) answer() (a response) {
	defer func() {
		if r := recover(); r != nil {
			a = response{saysFailed, fmt.Sprintf("password: panic: %v", r)}
		}
	}()
	switch q.kind {
	case opHash:
		p, err := ParseParams(q.text)
		if err != nil {
			return response{saysFailed, err.Error()}
		}
		hash, err := p.hash(q.password)
		if err != nil {
			return response{saysFailed, err.Error()}
		}
		return response{saysHash, hash}
	case opCheck:
		h, err := parse(q.text)
		if err != nil {
			return response{saysFailed, err.Error()}
		}
		right, err := h.check(q.password)
		if err != nil {
			return response{saysFailed, err.Error()}
		}
		if right {
			return response{kind: saysRight}
		}
		return response{kind: saysWrong}
	}
	return response{saysFailed, fmt.Sprintf("password: a question of the kind %q", q.kind)}
}

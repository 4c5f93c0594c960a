package password

import (
	"errors"
	"fmt"
)

// question is one job of a worker, in this process or a child.
type question struct {
	kind     byte
	text     string
	password []byte
}

const (
	askHash  byte = 'h' // the text is the parameters, as ParseParams reads them
	askCheck byte = 'c' // the text is the hash
)

type answer struct {
	kind byte
	text string
}

const (
	saysReady  byte = 'R' // a child's first word; the text says why its priority is not low, "" when it is
	saysHash   byte = 'H' // the text is the hash
	saysRight  byte = 'Y'
	saysWrong  byte = 'N'
	saysFailed byte = 'F' // the text says why
)

// err is what the answer is where another was wanted.
func (a answer) err() error {
	if a.kind == saysFailed {
		return errors.New(a.text)
	}
	return fmt.Errorf("password: an answer of the kind %q", a.kind)
}

// answer does the work. Whatever it panics with, the process lives on.
func (q question) answer() (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{saysFailed, fmt.Sprintf("password: panic: %v", r)}
		}
	}()
	switch q.kind {
	case askHash:
		p, err := ParseParams(q.text)
		if err != nil {
			return answer{saysFailed, err.Error()}
		}
		hash, err := p.hash(q.password)
		if err != nil {
			return answer{saysFailed, err.Error()}
		}
		return answer{saysHash, hash}
	case askCheck:
		h, err := parse(q.text)
		if err != nil {
			return answer{saysFailed, err.Error()}
		}
		right, err := h.check(q.password)
		if err != nil {
			return answer{saysFailed, err.Error()}
		}
		if right {
			return answer{kind: saysRight}
		}
		return answer{kind: saysWrong}
	}
	return answer{saysFailed, fmt.Sprintf("password: a question of the kind %q", q.kind)}
}

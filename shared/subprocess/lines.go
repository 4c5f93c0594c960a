package subprocess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Lines keeps the output of a process and can wait for a line in it. The zero value can be used as the Stdout or Stderr
// of an exec.Cmd. Its methods may be called from any goroutine.
type Lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed and replaced when there is more output; nil if nothing waits for it
}

// Write implements io.Writer. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return l.buf.Write(p)
}

// String returns all output so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Await waits for a whole line that contains the text part and, if v is not nil, is JSON that can be decoded into v. It
// returns an error when ended is closed (a nil channel never is), or when the time limit is over.
func (l *Lines) Await(part string, v any, ended <-chan struct{}, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	read := 0
	for {
		over := false
		select {
		case <-ended:
			over = true // all output has been written before ended was closed
		default:
		}
		text, more := l.since(read)
		for {
			line, rest, whole := strings.Cut(text, "\n")
			if !whole && !(over && line != "") {
				break
			}
			if strings.Contains(line, part) && (v == nil || json.Unmarshal([]byte(line), v) == nil) {
				return nil
			}
			read += len(text) - len(rest)
			text = rest
		}
		if over {
			return fmt.Errorf("subprocess: it ended without a line with %s", part)
		}
		select {
		case <-more:
		case <-ended:
		case <-timeout.C:
			return fmt.Errorf("subprocess: no line with %s within %s", part, limit)
		}
	}
}

// since returns the output without its first bytes, whose number is read, and a channel that is closed when there is
// more output.
func (l *Lines) since(read int) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return string(l.buf.Bytes()[read:]), l.more
}

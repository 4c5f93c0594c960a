package subprocess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Lines keeps a child's output, and lets others wait for a line of it. The zero value is ready to be a command's Stdout
// or Stderr. Its methods may be called from any goroutine.
type Lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed and replaced when more is written; nil without a waiter
}

// Write never fails.
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

// Await waits for a whole line that contains part and, if v is not nil, is JSON that fits v. It stops when ended is
// closed (nil: never) and when the time is up.
func (l *Lines) Await(part string, v any, ended <-chan struct{}, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	read := 0
	for {
		over := false
		select {
		case <-ended:
			over = true // its earlier output is complete
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

// since returns the output after the first read bytes, and a channel that is closed when there is more.
func (l *Lines) since(read int) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return string(l.buf.Bytes()[read:]), l.more
}

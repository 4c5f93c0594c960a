package subprocess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Lines keeps what a child writes, and lets others wait for a line of it. The zero value is ready to be a
// command's Stdout or Stderr. Its methods may be called from any goroutine.
type Lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed and forgotten when something comes; nil without a waiter
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

// String is all that was written so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Await waits for a whole line that contains part and, if v isn't nil, is JSON that v can hold. It stops when ended
// is closed (nil: never) and when the time is up.
func (l *Lines) Await(part string, v any, ended <-chan struct{}, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	read := 0
	for {
		over := false
		select {
		case <-ended:
			over = true // what it wrote before is there
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

// since is what was written behind the first read bytes, and a channel that is closed when there is more.
func (l *Lines) since(read int) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return string(l.buf.Bytes()[read:]), l.more
}

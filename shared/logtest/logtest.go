// Package logtest keeps what a program logs during a test, so that the test can read it while the program goes on
// logging.
package logtest

import (
	"bytes"
	"sync"
)

// Buffer is a log in memory. Its zero value is empty and ready for use. Its methods may be called from any goroutine.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns everything written so far.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

package subprocess_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/subprocess"
)

func TestLines(t *testing.T) {
	const long = time.Minute
	var l subprocess.Lines
	fmt.Fprint(&l, "one\n{\"msg\":\"ready\",\"n\":1}\n{\"msg\":\"ready\"")
	var v struct{ N int }
	if err := l.Await("ready", &v, nil, long); err != nil || v.N != 1 {
		t.Errorf("%v, %+v", err, v)
	}
	if err := l.Await("one", nil, nil, long); err != nil {
		t.Error(err)
	}
	// No JSON, and half a line, are not what is waited for.
	if err := l.Await("one", &v, nil, time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "no line with one within 1ms") {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if err := l.Await(fmt.Sprintf("<%d>", i), nil, nil, long); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 10 {
		fmt.Fprintf(&l, "<%d", i)
		fmt.Fprintln(&l, ">")
	}
	wg.Wait()

	// What ends says no more, but what it said last counts, a newline or not.
	ended := make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() { close(ended) })
	if err := l.Await("never", nil, ended, long); err == nil ||
		!strings.Contains(err.Error(), "ended without a line with never") {
		t.Error(err)
	}
	fmt.Fprint(&l, "last words")
	if err := l.Await("last words", nil, ended, long); err != nil {
		t.Error(err)
	}
	if s := l.String(); !strings.HasPrefix(s, "one\n") || !strings.HasSuffix(s, "last words") {
		t.Errorf("%q", s)
	}
}

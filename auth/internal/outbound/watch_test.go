package outbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each attempt and each redirect is a call, which ends when its answer was read, and names its receiver.
func TestWatch(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/here", http.StatusFound)
		case "/missing":
			w.WriteHeader(404)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "x")
		case "/large":
			io.WriteString(w, strings.Repeat("x", 5000))
		case "/hang":
			<-hang
		default:
			io.WriteString(w, "here")
		}
	})
	var told []string
	type key struct{}
	c := New(Options{Timeout: time.Minute, MaxBytes: 4096, Target: "somebody",
		Watch: func(ctx context.Context, c Call) (context.Context, func(int, error)) {
			if c.Method != "GET" || c.Host != strings.TrimPrefix(s.URL, "http://") {
				t.Errorf("%+v", c)
			}
			ended := false
			return context.WithValue(ctx, key{}, true), func(status int, err error) {
				if ended {
					t.Error("ended twice")
				}
				ended = true
				told = append(told, fmt.Sprint(c.Target, " ", status, " ", err != nil))
			}
		}})
	f := func(ctx context.Context, path string, want ...string) {
		t.Helper()
		told = nil
		r, _ := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
		resp, err := c.Configured.Do(r)
		if err == nil {
			if n := len(told); n != len(want)-1 {
				t.Errorf("%s: %d calls ended before the answer was read", path, n)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			resp.Body.Close()
		}
		if !slices.Equal(told, want) {
			t.Errorf("%s: %q, want %q", path, told, want)
		}
	}
	ctx := t.Context()
	f(ctx, "/here", "somebody 200 false")
	f(c.WithTarget(ctx, "somebody else"), "/here", "somebody else 200 false")
	f(ctx, "/moved", "somebody 302 false", "somebody 200 false")
	f(ctx, "/missing", "somebody 404 false")
	f(ctx, "/cut", "somebody 200 true")
	f(ctx, "/large", "somebody 200 true")
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	f(short, "/hang", "somebody 0 true")

	// No watcher: nothing is made.
	quiet := New(Options{})
	if n := testing.AllocsPerRun(100, func() { quiet.WithTarget(ctx, "anybody") }); n != 0 {
		t.Errorf("%v allocations for nobody", n)
	}
}

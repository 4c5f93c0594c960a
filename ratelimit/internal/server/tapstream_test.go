package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/rls"
)

// maxLines is more than a slow reader takes in the moment that a tap writes lines for before it looks around.
const maxLines = 150

// slowReader takes a line in a while, during which there is another one.
type slowReader struct {
	http.ResponseWriter
	more  func()
	lines int
}

func (s *slowReader) Write(b []byte) (int, error) {
	if s.lines++; s.lines > maxLines {
		return 0, http.ErrHandlerTimeout
	}
	time.Sleep(10 * time.Millisecond)
	s.more()
	return len(b), nil
}

func (s *slowReader) SetWriteDeadline(time.Time) error { return nil }
func (s *slowReader) Flush()                           {}

// A tap ends in time though there is always a line to write.
func TestTap_endsUnderLoad(t *testing.T) {
	t.Parallel()
	var o observe.Observer
	l, err := o.Listen(observe.Filter{Sample: 1, Rate: 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	more := func() {
		o.Watching().Note(&observe.Decision{At: time.Unix(1, 0), Request: &rls.Request{Domain: "d"},
			Response: &rls.Response{Overall: rls.OK}, Rules: []*limits.Rule{}}, nil)
	}
	more()
	w := &slowReader{ResponseWriter: httptest.NewRecorder(), more: more}
	stream{w, http.NewResponseController(w)}.send(l, httptest.NewRequest("GET", "/tap", nil), time.Millisecond)
	if w.lines > maxLines {
		t.Error("the tap did not end")
	}
}

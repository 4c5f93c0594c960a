// Package captchatest is a captcha provider for tests. It fails the test if a request deviates from the protocol. Its
// answers can be replaced with Say.
//
// It is for tests only. The one token that counts as a solved captcha is Solved.
package captchatest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Secret is the only secret that the server accepts, Solved the only token that it accepts.
const (
	Secret = "captcha-secret-hush"
	Solved = "10000000-aaaa-bbbb-cccc-000000000001"
)

// Question is one request that followed the protocol.
type Question struct {
	Token string
	IP    string // "" if none was sent
}

// Answer replaces the server's own answer.
type Answer struct {
	Status   int // 0: 200
	Body     string
	Location string // makes the answer a redirect, if Status is one of a redirect
	// Hang makes the server send nothing until the client disconnects or the server is closed.
	Hang bool
	Drop bool // makes the server close the connection without an answer
}

// Server is the captcha provider.
type Server struct {
	t    testing.TB
	http *httptest.Server
	done chan struct{}

	mu     sync.Mutex
	answer *Answer
	asked  []Question
}

// Start starts a server on a free port, which is closed when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, done: make(chan struct{})}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		close(s.done)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// URL returns the value for AUTH_SECURITY_CAPTCHA_URL.
func (s *Server) URL() string { return s.http.URL + "/siteverify" }

// Say sets the answer to all further requests; nil: the server's own answers.
func (s *Server) Say(a *Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

// Asked returns the requests so far, oldest first.
func (s *Server) Asked() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	r.ParseForm()
	wrong := func(format string, args ...any) {
		s.t.Errorf("captchatest: "+format, args...)
		w.WriteHeader(http.StatusTeapot)
	}
	if r.Method != "POST" || r.URL.Path != "/siteverify" || r.URL.RawQuery != "" ||
		r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" ||
		r.Header["Authorization"] != nil || r.Header["Cookie"] != nil {
		wrong("%s %s %v", r.Method, r.URL, r.Header)
		return
	}
	for name, values := range r.PostForm {
		if !slices.Contains([]string{"secret", "response", "remoteip"}, name) ||
			len(values) != 1 || strings.TrimSpace(values[0]) != values[0] || values[0] == "" {
			wrong("%s is %q", name, values)
			return
		}
	}
	q := Question{Token: r.PostForm.Get("response"), IP: r.PostForm.Get("remoteip")}
	s.mu.Lock()
	s.asked = append(s.asked, q)
	a := s.answer
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	say := func(body string) { fmt.Fprint(w, body) }
	switch {
	case a != nil && a.Hang:
		select {
		case <-s.done:
		case <-r.Context().Done():
		}
	case a != nil && a.Drop:
		panic(http.ErrAbortHandler)
	case a != nil:
		if a.Location != "" {
			w.Header().Set("Location", a.Location)
		}
		if a.Status != 0 {
			w.WriteHeader(a.Status)
		}
		say(a.Body)
	case r.PostForm.Get("secret") != Secret:
		say(`{"success":false,"error-codes":["invalid-input-secret"]}`)
	case q.Token == Solved:
		say(`{"success":true,"challenge_ts":"2026-03-04T12:00:00Z","hostname":"app.example.org"}`)
	default:
		say(`{"success":false,"error-codes":["invalid-input-response","timeout-or-duplicate"]}`)
	}
}

// Package fakeidp is a fake identity provider: it speaks the dialects of the eighteen providers that the auth daemon
// knows, and plain OpenID Connect, so that sign-ins can be tried and tested without an account anywhere. Each dialect
// has a path of its own, Base("github") and so on, which is the value of AUTH_EXTERNAL_GITHUB_URL; Base("oidc") is an
// issuer for a custom provider.
//
// It is strict: a code is valid once, for the client, redirect URI and PKCE challenge for which it was made, with the
// one style of client authentication that the real provider documents; anything else is refused and kept in Complaints.
// And it can be hostile: Behave makes it lie, stall and fail in every way a provider could. It is for loopback only and
// knows one client, ClientID with ClientSecret.
package fakeidp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// The client that every dialect knows.
const (
	ClientID     = "fake-client"
	ClientSecret = "fake secret/+&" // differs between a form, Basic and OAuth 1.0a
)

// User is a user with an account at the fake provider.
type User struct {
	ID         string // digits: some providers write it as a number
	Login      string
	Name       string
	GivenName  string
	FamilyName string
	Email      string // "": the provider gives none
	Verified   bool
	Picture    string
	// Emails are for dialects that list several; nil stands for Email, primary.
	Emails []Email
	// Extra is merged into the profile of the dialect and the claims of ID tokens.
	Extra map[string]any
}

// Email is one of several addresses.
type Email struct {
	Address           string
	Verified, Primary bool
}

// Ann is the user who signs in unless SetUser sets another.
var Ann = User{
	ID: "1234567", Login: "ann", Name: "Ann Example", GivenName: "Ann", FamilyName: "Example",
	Email: "Ann@Example.org", Verified: true, Picture: "https://pictures.example.org/ann.png",
}

func (u User) emails() []Email {
	if u.Emails == nil && u.Email != "" {
		return []Email{{u.Email, u.Verified, true}}
	}
	return u.Emails
}

// Request is a request that has arrived.
type Request struct {
	Dialect, Method, Path string // Path without the dialect
	Query, Form           url.Values
	Header                http.Header
}

// Server is a running fake provider.
type Server struct {
	URL string // without a path

	interactive bool
	http        *http.Server
	done        chan struct{}
	ring        *keyRing

	mu         sync.Mutex
	user       User
	people     []User
	behaviour  map[string]Behaviour
	codes      map[string]*grant
	access     map[string]*grant // by access token
	requests   []Request
	complaints []string
	seen       map[string]bool // by dialect and user, for what Apple sends once
}

// grant is a user's consent.
type grant struct {
	dialect, clientID, redirect, nonce, challenge string
	scopes                                        []string
	user                                          User
	used                                          bool
	token, tokenSecret                            string // OAuth 1.0a: the request token, then the access token
	old                                           bool   // by the second authorize path
}

// Options of a server. The zero value is for tests.
type Options struct {
	Addr string // "": a free port of 127.0.0.1
	// Interactive shows a page "sign in as ..." instead of redirecting the browser at once.
	Interactive bool
	People      []User // listed on that page; nil: Ann and Bob
}

// Start returns when the server listens. Close ends it.
func Start(o Options) (*Server, error) {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("fakeidp: %w", err)
	}
	s := &Server{
		URL: "http://" + l.Addr().String(), interactive: o.Interactive, done: make(chan struct{}), ring: newKeyRing(),
		user: Ann, people: o.People, behaviour: map[string]Behaviour{}, codes: map[string]*grant{},
		access: map[string]*grant{}, seen: map[string]bool{},
	}
	if s.people == nil {
		bob := User{ID: "7654321", Login: "bob", Name: "Bob Unproven", GivenName: "Bob", FamilyName: "Unproven",
			Email: "bob@example.org"}
		s.people = []User{Ann, bob}
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		s.http.Serve(l)
	}()
	return s, nil
}

// Close ends the server at once, with all stalled responses.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

// Base returns the base URL of a dialect.
func (s *Server) Base(dialect string) string { return s.URL + "/" + dialect }

// SetUser sets the user who signs in from now on, in all dialects.
func (s *Server) SetUser(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user = u
}

// Behave sets how a dialect misbehaves from now on; the zero Behaviour behaves correctly.
func (s *Server) Behave(dialect string, b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviour[dialect] = b
}

func (s *Server) behaves(dialect string) Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behaviour[dialect]
}

// Requests returns the requests to a dialect since the last Reset whose paths begin with path.
func (s *Server) Requests(dialect, path string) (found []Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.Dialect == dialect && strings.HasPrefix(r.Path, path) {
			found = append(found, r)
		}
	}
	return found
}

// Complaints returns the errors of a dialect's client.
func (s *Server) Complaints(dialect string) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.complaints {
		if strings.HasPrefix(c, dialect+": ") {
			found = append(found, c)
		}
	}
	return found
}

// Reset forgets requests, complaints, behaviour and the signed-in user; keys stay.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.complaints, s.user = nil, nil, Ann
	clear(s.behaviour)
	clear(s.seen)
}

func (s *Server) complain(dialect, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complaints = append(s.complaints, dialect+": "+fmt.Sprintf(format, args...))
}

// ServeHTTP routes by the first part of the path, the dialect, and the rest.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	d, ok := dialects[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path := "/" + rest
	s.mu.Lock()
	s.requests = append(s.requests, Request{Dialect: name, Method: r.Method, Path: path, Query: r.URL.Query(),
		Form: r.PostForm, Header: r.Header.Clone()})
	if len(s.requests) > 10000 { // make run may go on for days
		s.requests = slices.Clone(s.requests[5000:])
	}
	s.mu.Unlock()
	x := &exchange{Server: s, dialect: d, name: name, path: path, w: w, r: r, b: s.behaves(name)}
	x.serve()
}

// Callback is the response that a browser carries back from a provider.
type Callback struct {
	URL  string     // with its query
	Form url.Values // of a POST; nil: a GET
}

// Params returns the callback's parameters, from the query or the form.
func (c Callback) Params() url.Values {
	if c.Form != nil {
		return c.Form
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil
	}
	return u.Query()
}

// Visit acts as a browser at the provider: it opens the address to which the daemon has sent it, and returns the
// callback.
func (s *Server) Visit(ctx context.Context, address string) (Callback, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Callback{}, err
	}
	c := &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := c.Do(r)
	if err != nil {
		return Callback{}, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusFound:
		return Callback{URL: resp.Header.Get("Location")}, nil
	case http.StatusOK:
		return readForm(resp)
	}
	return Callback{}, fmt.Errorf("fakeidp: %s answers %s: %s", r.URL.Path, resp.Status, resp.Header.Get("X-Complaint"))
}

var errNoForm = errors.New("fakeidp: the page has no form to post")

func random() string { return rand.Text() }

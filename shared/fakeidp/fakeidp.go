// Package fakeidp is a fake identity provider. It speaks the dialects of the auth daemon's built-in providers, and
// plain OpenID Connect, so that sign-ins can be tried and tested without an account anywhere. Each dialect has a path
// of its own: Base("github") is a value for AUTH_EXTERNAL_GITHUB_URL, and so on; Base("oidc") is an issuer for a custom
// provider.
//
// It is strict: it accepts a code once, only for the client, redirect URI and PKCE challenge for which the code was
// issued, and only with the one way of client authentication that the real provider documents. It refuses anything
// else, and Complaints returns why. It can also be hostile: Behave makes it lie, stall and fail in every way a provider
// could. It is for loopback only and knows one client, ClientID with ClientSecret.
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

// These are the ID and the secret of the client that all dialects know.
const (
	ClientID     = "fake-client"
	ClientSecret = "fake secret/+&" // a text that a form, HTTP Basic and OAuth 1.0a each encode differently
)

// User is a user who has an account at the fake provider.
type User struct {
	ID         string // digits only, because some providers write it as a number
	Login      string
	Name       string
	GivenName  string
	FamilyName string
	Email      string // "" if the provider does not have one
	Verified   bool
	Picture    string
	// Emails are for dialects that list several addresses; nil means Email alone, as the primary address.
	Emails []Email
	// Extra is merged into the profile and into the claims of ID tokens.
	Extra map[string]any
}

// Email is one of several addresses of a user.
type Email struct {
	Address           string
	Verified, Primary bool
}

// Ann is the user who signs in unless SetUser has set another.
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

// Request is a request that the fake provider has received.
type Request struct {
	Dialect, Method, Path string // Path is without the dialect's prefix
	Query, Form           url.Values
	Header                http.Header
}

// Server is a running fake provider.
type Server struct {
	URL string // base URL, without a path

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
	seen       map[string]bool // by dialect and user, since Apple sends some data only once
}

// grant is the consent of a user to a client's request, from which the code and the tokens are issued.
type grant struct {
	dialect, clientID, redirect, nonce, challenge string
	scopes                                        []string
	user                                          User
	used                                          bool
	token, tokenSecret                            string // OAuth 1.0a: the request token, then the access token
	old                                           bool   // granted at the dialect's second authorize path
}

// Options are the options of Start. The zero value is for tests.
type Options struct {
	Addr string // listening address; "" means a free port of 127.0.0.1
	// Interactive makes the provider show a page on which a user is chosen, instead of redirecting the browser at once.
	Interactive bool
	People      []User // the users to choose from; nil means Ann and Bob
}

// Start starts the server and returns when it listens. Close stops it.
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

// Close stops the server at once, and with it all responses that are being delayed.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

// Base returns the base URL of a dialect.
func (s *Server) Base(dialect string) string { return s.URL + "/" + dialect }

// SetUser sets the user who signs in from now on, whatever the dialect.
func (s *Server) SetUser(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user = u
}

// Behave sets how a dialect misbehaves from now on; the zero Behaviour makes it behave correctly.
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

// Requests returns the requests to a dialect, since the last Reset, whose paths begin with path.
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

// Complaints returns the errors that the client of a dialect has made.
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

// Reset forgets requests, complaints and behaviours, and sets the user back to Ann. Keys stay.
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

// ServeHTTP serves all dialects. The first part of a path is the dialect's name.
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

// Callback is the response that the browser carries from the provider to the client.
type Callback struct {
	URL  string     // the client's callback URL, with its query
	Form url.Values // body of a POST; nil for a GET
}

// Params returns the callback's parameters, which are in the query or in the form.
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

// Visit acts as a browser: it opens the address at the provider to which the daemon has redirected it, and returns the
// response to carry back.
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

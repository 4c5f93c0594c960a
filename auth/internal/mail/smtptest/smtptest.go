// Package smtptest is an SMTP server for tests. It listens on a real port, supports STARTTLS, implicit TLS and AUTH,
// and misbehaves as a test configures it.
//
// It is for tests only. It keeps every mail that it accepts and delivers nothing. It checks commands only as far as
// package mail could send wrong ones.
package smtptest

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"
)

// Step is a point of an SMTP session at which the server can misbehave.
type Step string

// The steps, in the order of a session.
const (
	Connect Step = "connect" // before the greeting
	Ehlo    Step = "ehlo"
	Auth    Step = "auth"
	From    Step = "from"
	Rcpt    Step = "rcpt"
	Data    Step = "data"  // the command DATA
	Text    Step = "text"  // a part of the text was received
	End     Step = "end"   // all of the text was received, but the mail is not accepted yet
	Taken   Step = "taken" // the mail is accepted, but the answer is not sent yet
	Quit    Step = "quit"
)

// Action is what the server does at a step. The zero Action is what a correct server does.
type Action struct {
	// Reply replaces the server's answer, for example by "550 5.1.1 no such user".
	Reply string
	// Drop makes the server close the connection.
	Drop bool
	// Hang makes the server send nothing more until the client disconnects or the server is closed.
	Hang bool
}

// Options configure which extensions the server offers.
type Options struct {
	// StartTLS makes the server offer STARTTLS; ImplicitTLS makes it use TLS from the first byte.
	StartTLS, ImplicitTLS bool
	// Mechanisms are the mechanisms that the server offers with AUTH. User and Pass are the only credentials that it
	// accepts.
	Mechanisms []string
	User, Pass string
}

// Mail is a mail that the server has accepted.
type Mail struct {
	Helo, From, To string
	// User is the account that has signed in; "" if none has. Encrypted is true if the connection used TLS.
	User      string
	Encrypted bool
	// Raw is the text with CRLF line ends and without dot-stuffing.
	Raw []byte
}

// Message parses Raw. It fails the test if Raw is not a valid mail.
func (m Mail) Message(t testing.TB) *netmail.Message {
	t.Helper()
	msg, err := netmail.ReadMessage(bytes.NewReader(m.Raw))
	if err != nil {
		t.Fatalf("a mail that can't be read: %v\n%s", err, m.Raw)
	}
	return msg
}

// Server is an SMTP server.
type Server struct {
	t    testing.TB
	o    Options
	cert tls.Certificate
	pool *x509.CertPool
	addr *net.TCPAddr

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	mails    []Mail
	behave   func(Step) Action
	dialled  int
	wg       sync.WaitGroup
}

// Start starts a server, which is closed when the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, o: o, conns: map[net.Conn]bool{}, behave: func(Step) Action { return Action{} }}
	s.cert, s.pool = certificate(t)
	s.Up()
	t.Cleanup(s.Down)
	return s
}

// Up makes the server listen. After Down it uses the same port again.
func (s *Server) Up() {
	s.t.Helper()
	address := "127.0.0.1:0"
	if s.addr != nil {
		address = s.addr.String()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().(*net.TCPAddr)
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = true
			s.dialled++
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(conn) })
		}
	})
}

// Down closes all connections, and makes the server refuse new ones until Up.
func (s *Server) Down() {
	s.mu.Lock()
	s.listener.Close()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Host returns the address at which the server listens.
func (s *Server) Host() string { return "127.0.0.1" }

// Port returns the port at which the server listens.
func (s *Server) Port() int { return s.addr.Port }

// ClientTLS returns a configuration for clients that accepts the server's certificate.
func (s *Server) ClientTLS() *tls.Config {
	return &tls.Config{RootCAs: s.pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}

// PEM returns the server's certificate in PEM, for a process that reads its root certificates from a file.
func (s *Server) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Certificate[0]}))
}

// Behave sets the function that returns the server's action at each step; nil: the server does not misbehave.
func (s *Server) Behave(f func(Step) Action) {
	if f == nil {
		f = func(Step) Action { return Action{} }
	}
	s.mu.Lock()
	s.behave = f
	s.mu.Unlock()
}

// At returns a function for Behave that returns the action a at one step only.
func At(at Step, a Action) func(Step) Action {
	return func(s Step) Action {
		if s == at {
			return a
		}
		return Action{}
	}
}

// Mails returns all mails that were accepted so far.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.mails...)
}

// Dialled returns how many connections were opened so far.
func (s *Server) Dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialled
}

// session is one connection of a client.
type session struct {
	s    *Server
	conn net.Conn
	r    *bufio.Reader
	mail Mail
}

var errDropped = errors.New("dropped on purpose")

func (s *Server) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	c := &session{s: s, conn: conn, r: bufio.NewReader(conn)}
	if s.o.ImplicitTLS {
		c.upgrade()
	}
	if c.answer(Connect, "220 test ESMTP") != nil {
		return
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil || c.command(strings.TrimRight(line, "\r\n")) != nil {
			return
		}
	}
}

func (c *session) upgrade() {
	c.conn = tls.Server(c.conn, &tls.Config{Certificates: []tls.Certificate{c.s.cert}})
	c.r = bufio.NewReader(c.conn)
	c.mail.Encrypted = true
}

func (c *session) say(line string) error {
	_, err := fmt.Fprintf(c.conn, "%s\r\n", line)
	return err
}

// misbehave does what the test has configured for a step. It returns true if the usual answer must not be sent.
func (c *session) misbehave(at Step) (bool, error) {
	c.s.mu.Lock()
	behave := c.s.behave
	c.s.mu.Unlock()
	a := behave(at)
	switch {
	case a.Drop:
		return true, errDropped
	case a.Hang:
		io.Copy(io.Discard, c.r)
		return true, errDropped
	case a.Reply != "":
		return true, c.say(a.Reply)
	}
	return false, nil
}

func (c *session) answer(at Step, line string) error {
	if done, err := c.misbehave(at); done {
		return err
	}
	return c.say(line)
}

func (c *session) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch strings.ToUpper(verb) {
	case "EHLO", "HELO":
		c.mail.Helo = rest
		if done, err := c.misbehave(Ehlo); done {
			return err
		}
		return c.say(c.extensions())
	case "STARTTLS":
		if err := c.say("220 go ahead"); err != nil {
			return err
		}
		c.upgrade()
		return nil
	case "AUTH":
		if done, err := c.misbehave(Auth); done {
			return err
		}
		return c.signIn(rest)
	case "MAIL":
		c.mail.From = between(rest)
		return c.answer(From, "250 ok")
	case "RCPT":
		c.mail.To = between(rest)
		return c.answer(Rcpt, "250 ok")
	case "DATA":
		return c.data()
	case "NOOP", "RSET":
		return c.say("250 ok")
	case "QUIT":
		if err := c.answer(Quit, "221 bye"); err != nil {
			return err
		}
		return io.EOF
	}
	return c.say("502 what?")
}

func (c *session) extensions() string {
	list := []string{"test", "8BITMIME", "ENHANCEDSTATUSCODES", "SMTPUTF8"}
	if c.s.o.StartTLS && !c.mail.Encrypted {
		list = append(list, "STARTTLS")
	}
	if len(c.s.o.Mechanisms) > 0 {
		list = append(list, "AUTH "+strings.Join(c.s.o.Mechanisms, " "))
	}
	for i := range list {
		sep := "-"
		if i == len(list)-1 {
			sep = " "
		}
		list[i] = "250" + sep + list[i]
	}
	return strings.Join(list, "\r\n")
}

func between(rest string) string {
	_, rest, _ = strings.Cut(rest, "<")
	address, _, _ := strings.Cut(rest, ">")
	return address
}

func (c *session) data() error {
	if done, err := c.misbehave(Data); done {
		return err
	}
	if err := c.say("354 send it"); err != nil {
		return err
	}
	c.r.Peek(20) // wait until a part of the text has arrived
	if done, err := c.misbehave(Text); done {
		return err
	}
	raw, err := io.ReadAll(textproto.NewReader(c.r).DotReader())
	if err != nil {
		return err
	}
	if done, err := c.misbehave(End); done {
		return err
	}
	m := c.mail
	m.Raw = bytes.ReplaceAll(raw, []byte("\n"), []byte("\r\n"))
	c.s.mu.Lock()
	c.s.mails = append(c.s.mails, m)
	c.s.mu.Unlock()
	return c.answer(Taken, "250 2.0.0 queued")
}

// certificate makes a self-signed certificate for localhost and 127.0.0.1.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

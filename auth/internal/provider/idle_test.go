package provider

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// impatient passes connections on to a server, and ends one in which a request arrives after a rest of 2 s, as a server
// does whose own time for idle connections is over at that moment.
func impatient(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	var passing sync.WaitGroup
	t.Cleanup(func() { l.Close(); passing.Wait() })
	passing.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { passOn(client, server) })
		}
	})
	return l.Addr().String()
}

func passOn(client net.Conn, server string) {
	defer client.Close()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		io.Copy(client, s)
		client.Close()
	}()
	b := make([]byte, 4<<10)
	for {
		began := time.Now()
		n, err := client.Read(b)
		if err != nil || time.Since(began) > 2*time.Second {
			return
		}
		s.Write(b[:n])
	}
}

// A code is handed in over a connection that is new, or was used a moment ago.
func TestExchange_idleConnection(t *testing.T) {
	t.Parallel()
	f := start(t)
	c := clientOf(f, "github")
	at, err := url.Parse(c.URL)
	must.Succeed(t, err)
	at.Host = impatient(t, at.Host)
	c.URL = at.String()
	set := setOf(t, Settings{Clients: map[string]Client{"github": c}})
	for i := range 2 {
		if i > 0 {
			time.Sleep(2100 * time.Millisecond)
		}
		if _, err := flow(t, f, set, "github", nil); err != nil {
			t.Errorf("sign-in %d: %v", i, err)
		}
	}
}

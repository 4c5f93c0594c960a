// Package dnstest is a DNS server for tests of SRV look-ups.
package dnstest

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server answers SRV queries over UDP with given records.
type Server struct {
	// Addr is host:port.
	Addr string
	conn net.PacketConn

	mu    sync.Mutex
	rcode dnsmessage.RCode
	ports []int // of localhost
	asked int
}

// Start runs a server until t ends. At first it has no records.
func Start(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &Server{Addr: conn.LocalAddr().String(), conn: conn}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return d
}

func (d *Server) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		d.mu.Lock()
		d.asked++
		m.Header.Response, m.Header.RCode, m.Additionals = true, d.rcode, nil
		q := m.Questions[0]
		if q.Type == dnsmessage.TypeSRV && d.rcode == dnsmessage.RCodeSuccess {
			for i, port := range d.ports {
				m.Answers = append(m.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
					Body: &dnsmessage.SRVResource{Priority: uint16(i), Weight: 7, Port: uint16(port),
						Target: dnsmessage.MustNewName("localhost.")},
				})
			}
		}
		d.mu.Unlock()
		if answer, err := m.Pack(); err == nil {
			d.conn.WriteTo(answer, from)
		}
	}
}

// Say sets the answers to later queries: the error rcode or, if it is success, records that name the ports of addrs at
// the host localhost.
func (d *Server) Say(rcode dnsmessage.RCode, addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rcode, d.ports = rcode, nil
	for _, a := range addrs {
		_, port, _ := net.SplitHostPort(a)
		n, _ := strconv.Atoi(port)
		d.ports = append(d.ports, n)
	}
}

// Asked returns how many queries have arrived.
func (d *Server) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// Resolver returns a resolver that queries the server at addr.
func Resolver(addr string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", addr)
	}}
}

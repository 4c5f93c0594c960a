package memcached

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"net"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// peer is another client of a list of nodes, which shares no code with the store.
type peer struct {
	t     testing.TB
	conns []net.Conn
	ins   []*bufio.Reader
}

func newPeer(t testing.TB, addrs ...string) *peer {
	t.Helper()
	p := &peer{t: t}
	for _, addr := range addrs {
		c, err := net.Dial("tcp", addr)
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		p.conns, p.ins = append(p.conns, c), append(p.ins, bufio.NewReader(c))
	}
	return p
}

// command sends the node of that key a command, and returns the first line of its answer.
func (p *peer) command(key, format string, args ...any) string {
	p.t.Helper()
	at := crc32.ChecksumIEEE([]byte(key)) % uint32(len(p.conns))
	must.Succeed(p.t, must.ErrOf(fmt.Fprintf(p.conns[at], format+"\r\n", args...)))
	return p.line(at)
}

func (p *peer) line(at uint32) string {
	p.t.Helper()
	line, err := p.ins[at].ReadString('\n')
	must.Succeed(p.t, err)
	return strings.TrimSuffix(line, "\r\n")
}

// get is the value of a key; empty: it has none.
func (p *peer) get(key string) (value string) {
	p.t.Helper()
	at := crc32.ChecksumIEEE([]byte(key)) % uint32(len(p.conns))
	for line := p.command(key, "get %s", key); line != "END"; line = p.line(at) {
		value = line // VALUE first, then what it announces
	}
	return value
}

package countertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"gatehouse/shared/chaos"
)

// Garbler is a proxy in front of a server. It garbles some of the server's replies, to test that a client detects
// broken replies.
type Garbler struct {
	net.Listener
	server string

	mu      sync.Mutex
	chance  *rand.Rand
	garble  Garble
	once    bool
	rate    float64
	garbled int
}

// Garble is one way to garble replies. Apply returns the bytes that the client gets instead of the bytes that the
// server has sent; After says what then happens to the connection.
type Garble struct {
	Name  string
	Apply func(sent []byte, r *rand.Rand) []byte
	After After
}

// After is what happens to a connection after a garbled reply.
type After uint8

// Values of After: Pass keeps the connection, End closes it, and Hang sends nothing more until the client closes it.
const (
	Pass After = iota
	End
	Hang
)

// before returns a Garble that sends text before the server's bytes.
func before(name, text string) Garble {
	return Garble{Name: name, Apply: func(sent []byte, _ *rand.Rand) []byte { return append([]byte(text), sent...) }}
}

func half(sent []byte, _ *rand.Rand) []byte { return sent[:len(sent)/2] }

// Extra returns a Garble that sends one more reply after the server's replies.
func Extra(reply string) Garble {
	return Garble{Name: fmt.Sprintf("an extra reply %q", reply), Apply: func(sent []byte, _ *rand.Rand) []byte {
		return append(append([]byte(nil), sent...), reply...)
	}}
}

// Garbles are the ways in which replies of any line-based protocol can be broken.
var Garbles = []Garble{
	{Name: "a flipped byte", Apply: func(sent []byte, r *rand.Rand) []byte {
		out := append([]byte(nil), sent...)
		i := r.IntN(len(out))
		// A digit must not become another digit: that would be a valid reply, which no client can detect.
		if flip := byte(1) << r.IntN(8); out[i] < '0' || out[i] > '9' {
			out[i] ^= flip
		} else {
			out[i] ^= 0x80
		}
		return out
	}},
	{Name: "an end within a reply", Apply: half, After: End},
	{Name: "a hang within a reply", Apply: half, After: Hang},
}

// RESPGarbles are the ways in which the replies of a Redis can be broken.
var RESPGarbles = append([]Garble{
	before("a long array", "*999999999999999999\r\n"),
	before("an array beyond memory", "*1999999999\r\n"),
	before("a map", "%2\r\n"),
	before("a long string", "$999999999999999999\r\n"),
	before("a string beyond memory", "$99999999999\r\n"),
	before("a negative length", "*-7\r\n"),
	Extra(":1\r\n"),
}, Garbles...)

// MemcachedGarbles are the ways in which the replies of a memcached can be broken.
var MemcachedGarbles = append([]Garble{
	before("a reply of another protocol", "*999999999999999999\r\n"),
	before("a value that nobody wants", "VALUE other 0 1\r\n1\r\n"),
	before("a value beyond memory", "VALUE fixed1 0 99999999999\r\n"),
	before("a value of a negative length", "VALUE fixed1 0 -7\r\n"),
	before("a line without an end", strings.Repeat("8", 8<<10)),
	Extra("END\r\n"),
	Extra("1\r\n"),
}, Garbles...)

// NewGarbler starts a proxy for the server at the given address. The proxy ends with t.
func NewGarbler(t testing.TB, server string) *Garbler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Garbler{Listener: l, server: server, chance: chaos.Rand(t)}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			conns.Go(func() { pass(server, client); server.Close() })
			conns.Go(func() { g.replies(client, server); client.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return g
}

// Once garbles only the next reply, in the given way.
func (g *Garbler) Once(with Garble) { g.set(with, true, 0) }

// At garbles each reply with a probability of rate, from 0 to 1.
func (g *Garbler) At(rate float64, with Garble) { g.set(with, false, rate) }

func (g *Garbler) set(with Garble, once bool, rate float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.garble, g.once, g.rate = with, once, rate
}

// Garbled returns how many replies were garbled so far.
func (g *Garbler) Garbled() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.garbled
}

func pass(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (g *Garbler) replies(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		out, after := g.next(buf[:n])
		if _, err := to.Write(out); err != nil || after == End {
			return
		}
		if after == Hang {
			from.Read(buf) // returns when the client gives up
			return
		}
	}
}

// next returns the bytes to send to the client instead of the bytes that the server has sent, and what happens to the
// connection afterwards.
func (g *Garbler) next(sent []byte) ([]byte, After) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.once && g.chance.Float64() >= g.rate {
		return sent, Pass
	}
	g.once = false
	g.garbled++
	return g.garble.Apply(sent, g.chance), g.garble.After
}

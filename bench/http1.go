//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// httpClient is one HTTP/1.1 connection with at most one request in flight. Like client, its counterpart for gRPC, it
// does little, to use little CPU time: net/http's client would use as much as the daemon, on the same cores.
//
// It is not a general client: it understands only answers with a Content-Length, and chunked answers that arrive as a
// whole, and it gives up where another client would reconnect. Only one goroutine may use it.
type httpClient struct {
	socket
	in     []byte // the part of an answer that has arrived
	reader *bufio.Reader
	busy   bool
	begun  int64 // when the request in flight was due, in ns on the load's clock
}

// receive reads the bytes that have arrived. done is set if the answer is complete; body is then valid until the next
// call of receive.
func (c *httpClient) receive() (status int, body []byte, done bool, err error) {
	for {
		c.in = append(c.in, make([]byte, 4096)...) // does not allocate once the buffer has grown
		at := len(c.in) - 4096
		n, err := c.read(c.in[at:])
		c.in = c.in[:at+n]
		if n == 0 {
			return 0, nil, false, err
		}
		if !c.busy {
			return 0, nil, false, fmt.Errorf("an answer that nobody asked for: %q", c.in)
		}
		var size int
		status, body, size, err = parse(c.in, c.reader)
		if err != nil {
			return 0, nil, false, err
		}
		if size == 0 {
			continue
		}
		if size != len(c.in) {
			return 0, nil, false, fmt.Errorf("%d bytes follow the answer", len(c.in)-size)
		}
		c.in, c.busy = c.in[:0], false
		return status, body, true, nil
	}
}

// parse parses the answer at the beginning of the bytes in. It uses the given reader, to save an allocation. size is
// the answer's length; 0 if the answer is not complete.
func parse(in []byte, reader *bufio.Reader) (status int, body []byte, size int, err error) {
	if !bytes.Contains(in, []byte("\r\n\r\n")) {
		return 0, nil, 0, nil
	}
	from := bytes.NewReader(in)
	reader.Reset(from)
	answer, err := http.ReadResponse(reader, nil)
	if err != nil || answer.ContentLength < 0 && len(answer.TransferEncoding) == 0 {
		return 0, nil, 0, fmt.Errorf("an answer without end: %q (%v)", in, err)
	}
	body, err = io.ReadAll(answer.Body)
	if err != nil && strings.Contains(err.Error(), "EOF") { // the rest has not arrived yet
		return 0, nil, 0, nil
	}
	return answer.StatusCode, body, len(in) - from.Len() - reader.Buffered(), err
}

// httpTraffic makes HTTP/1.1 requests and judges their answers. The load's thread does both. A connection has one
// request in flight.
type httpTraffic struct {
	// next appends the next request of a connection to b. It returns false if the connection has no further requests.
	next func(b []byte, conn int) ([]byte, bool)
	// judge reports whether an answer is as the scenario expects. It must not keep body, which the next answer
	// overwrites.
	judge func(conn, status int, body []byte) bool
}

// drive runs a load of requests.
func (t httpTraffic) drive(l load) (*result, error) {
	r := newRunner(l, 1)
	r.exchange = &httpExchange{runner: r, httpTraffic: t, clients: make([]*httpClient, l.conns)}
	return r.drive()
}

// httpExchange implements exchange for a running load of HTTP/1.1 requests.
type httpExchange struct {
	runner *runner
	httpTraffic
	clients []*httpClient

	finished int     // number of connections that have no next request
	waiting  []int64 // open loop: when the requests were due that wait for a free connection
}

func (e *httpExchange) dial(conn int) (*socket, error) {
	s, err := connect(e.runner.addr)
	e.clients[conn] = &httpClient{socket: s, reader: bufio.NewReader(nil)}
	return &e.clients[conn].socket, err
}

// begin sends the next request of a connection.
func (e *httpExchange) begin(conn int, due int64) error {
	c := e.clients[conn]
	request, ok := e.next(c.out[:0], conn)
	if !ok {
		e.finished++
		e.runner.exhausted = e.finished == len(e.clients)
		return nil
	}
	// Wait for the answer even at the end of the load, since it may have the token that the account's next request
	// needs.
	e.runner.pending++
	c.out, c.busy, c.begun = request, true, due
	return c.flush()
}

// beginDue sends a request on the first free connection. If no connection is free, the request waits, and the time that
// it waits is part of its latency.
func (e *httpExchange) beginDue(due int64) error {
	free := slices.IndexFunc(e.clients, func(c *httpClient) bool { return !c.busy })
	if free < 0 {
		e.waiting = append(e.waiting, due)
		return nil
	}
	return e.begin(free, due)
}

// serve writes and reads on a connection as much as is possible without waiting. If the connection breaks, the request
// counts as failed and a new connection replaces the broken one.
func (e *httpExchange) serve(conn int) error {
	c := e.clients[conn]
	err := c.flush()
	status, body, done := 0, []byte(nil), false
	if err == nil {
		status, body, done, err = c.receive()
	}
	begun := c.begun
	if err != nil {
		status, body, done = 0, []byte(err.Error()), c.busy
		if redialed := e.runner.connect(conn); redialed != nil {
			return errors.Join(err, redialed)
		}
	}
	if done {
		e.runner.pending--
		return e.ended(conn, begun, status, body)
	}
	return nil
}

// ended reports an answer to the runner and begins the connection's next request: in a closed loop at once, in an open
// loop if a request is waiting.
func (e *httpExchange) ended(conn int, begun int64, status int, body []byte) error {
	now := e.runner.now()
	o, refusal := outcomeOK, ""
	if !e.judge(conn, status, body) {
		o, refusal = outcomeFailed, fmt.Sprintf("%d %.200s", status, body)
	}
	e.runner.ended(conn, begun, now, o, refusal)
	switch {
	case e.runner.draining:
		return nil
	case e.runner.rate == 0:
		return e.begin(conn, now)
	case len(e.waiting) > 0:
		due := e.waiting[0]
		e.waiting = e.waiting[:copy(e.waiting, e.waiting[1:])]
		return e.begin(conn, due)
	}
	return nil
}

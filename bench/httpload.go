//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
)

// httpTraffic makes HTTP/1.1 requests and judges the answers, both on the load's own thread. A connection has one
// request in flight.
type httpTraffic struct {
	// next appends a connection's next request to b. It returns false when the connection has no further request.
	next func(b []byte, conn int) ([]byte, bool)
	// judge reports whether an answer is the one that the scenario expects. The next answer overwrites body.
	judge func(conn, status int, body []byte) bool
}

// drive runs a load of requests.
func (t httpTraffic) drive(l load) (*result, error) {
	r := newRunner(l)
	r.exchange = &httpExchange{runner: r, httpTraffic: t, clients: make([]*httpClient, l.conns)}
	return r.drive()
}

// httpExchange is a running load of requests.
type httpExchange struct {
	runner *runner
	httpTraffic
	clients []*httpClient

	finished int     // connections without a next request
	waiting  []int64 // open loop: requests that were due while no connection was free
}

func (e *httpExchange) dial(conn int) (*socket, error) {
	s, err := connect(e.runner.addr)
	e.clients[conn] = &httpClient{socket: s}
	return &e.clients[conn].socket, err
}

func (*httpExchange) inFlight() int { return 1 }

func (e *httpExchange) exhausted() bool { return e.finished == len(e.clients) }

// pending reports whether a request is in flight: its answer, not read yet, may contain the token that the next request
// needs.
func (e *httpExchange) pending() bool {
	return slices.ContainsFunc(e.clients, func(c *httpClient) bool { return c.busy })
}

// begin sends a connection's next request.
func (e *httpExchange) begin(conn int, due int64) error {
	c := e.clients[conn]
	request, ok := e.next(c.out[:0], conn)
	if !ok {
		e.finished++
		return nil
	}
	c.out, c.busy, c.begun = request, true, due
	return c.flush()
}

// beginDue uses the first connection that is free. Without one the request waits, with the clock running.
func (e *httpExchange) beginDue(due int64) error {
	free := slices.IndexFunc(e.clients, func(c *httpClient) bool { return !c.busy })
	if free < 0 {
		e.waiting = append(e.waiting, due)
		return nil
	}
	return e.begin(free, due)
}

// serve writes and reads as far as a connection is ready. A connection that breaks is a failed request, and another
// connection replaces it.
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
		return e.ended(conn, begun, status, body)
	}
	return nil
}

// ended reports an answer and begins the connection's next request: in a closed loop at once, in an open loop if one is
// due.
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

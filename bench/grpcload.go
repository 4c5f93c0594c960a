//go:build linux

package main

// grpcTraffic is calls of one scenario over HTTP/2.
type grpcTraffic struct {
	scenario scenario
	// streams is how many calls each connection keeps in flight (closed loop).
	streams int
	timeout string // grpc-timeout of the calls, "" for none
	// largeEvery, when not 0, makes each call with a multiple of that number a call of the scenario large. Large calls
	// are made and must be answered OK; latency and count are those of the other calls.
	large      scenario
	largeEvery int
	// literalPath writes :path in full in each header block, as Envoy does, and not as an index.
	literalPath bool
}

// drive runs a load of calls.
func (t grpcTraffic) drive(l load) (*result, error) {
	r := newRunner(l, t.streams)
	e := &grpcExchange{runner: r, grpcTraffic: t, clients: make([]*client, l.conns), encoder: newEncoder(t.scenario)}
	if t.largeEvery > 0 {
		e.largeEncoder = newEncoder(t.large)
	}
	r.exchange = e
	return r.drive()
}

// grpcExchange is a running load of calls.
type grpcExchange struct {
	runner *runner
	grpcTraffic
	clients []*client
	encoder *encoder

	largeEncoder *encoder
	turn         int // open loop: the connection that the next call begins on
	begun        int
}

func (e *grpcExchange) dial(conn int) (*socket, error) {
	c, err := dial(e.runner.addr, e.timeout, e.literalPath)
	if err != nil {
		return nil, err
	}
	e.clients[conn] = c
	return &c.socket, nil
}

// begin starts a call. In a closed loop calls may run out.
func (e *grpcExchange) begin(conn int, due int64) error {
	if e.runner.calls > 0 && e.runner.rate == 0 && e.begun >= e.runner.calls {
		return nil
	}
	e.begun++
	c := e.clients[conn]
	if c.full() { // a server that has hung for so long answers no call in time
		e.runner.result.failed++
		e.runner.result.refusal = "too many calls in flight"
		return nil
	}
	e.send(c, due, e.largeEvery > 0 && e.begun%e.largeEvery == 0)
	return nil
}

func (e *grpcExchange) send(c *client, due int64, large bool) {
	encoder := e.encoder
	if large {
		encoder = e.largeEncoder
	}
	c.begin(encoder.next(), due, large)
}

// beginDue uses the connections in turn.
func (e *grpcExchange) beginDue(due int64) error {
	conn := e.turn
	e.turn = (e.turn + 1) % len(e.clients)
	return e.begin(conn, due)
}

func (e *grpcExchange) serve(conn int) error {
	c, now := e.clients[conn], e.runner.now()
	if err := c.receive(func(done *call) { e.ended(conn, done, now) }); err != nil {
		return err
	}
	e.retry(c)
	return nil
}

// ended reports an answer and, in a closed loop, begins the next call.
func (e *grpcExchange) ended(conn int, done *call, now int64) {
	o, refusal := outcomeOK, ""
	switch {
	case done.bad || done.overall == 0:
		o, refusal = outcomeFailed, e.clients[conn].lastRefused
	case done.overall == 2:
		o = outcomeOver
	}
	if !done.large || o != outcomeOK {
		e.runner.ended(conn, done.begun, now, o, refusal)
	}
	if e.runner.rate == 0 {
		e.begin(conn, now)
	}
}

// retry begins the calls for which the server had no window.
func (e *grpcExchange) retry(c *client) {
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		e.send(c, w.begun, w.large)
	}
}

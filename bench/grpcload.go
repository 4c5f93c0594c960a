//go:build linux

package main

// grpcTraffic makes the gRPC calls of one scenario, with this program's own HTTP/2 client.
type grpcTraffic struct {
	scenario scenario
	// streams is the number of calls that each connection has in flight in a closed loop.
	streams int
	timeout string // header grpc-timeout of the calls; "" means none
	// If largeEvery is not 0, each call whose number is a multiple of it is a call of the scenario large. Such calls
	// must be answered with OK, but are not part of the measured latency and count.
	large      scenario
	largeEvery int
	// literalPath makes each call have :path in full, as Envoy sends it, instead of as an index into the header table.
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

// grpcExchange implements exchange for a running load of gRPC calls.
type grpcExchange struct {
	runner *runner
	grpcTraffic
	clients []*client
	encoder *encoder

	largeEncoder *encoder
	turn         int // open loop: the connection on which the next call begins
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

// begin begins a call. In a closed loop it does nothing if the load has begun all its calls.
func (e *grpcExchange) begin(conn int, due int64) error {
	if e.runner.calls > 0 && e.runner.rate == 0 && e.begun >= e.runner.calls {
		return nil
	}
	e.begun++
	c := e.clients[conn]
	if c.full() { // the server has hung for so long that no call is answered in time
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

// beginDue begins a call on the next connection: it takes connections in turn.
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

// ended reports the answer to a call to the runner. In a closed loop it begins the next call.
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

// retry begins the calls that waited because the server's flow-control window was full.
func (e *grpcExchange) retry(c *client) {
	waiting := c.waiting
	c.waiting = nil
	for _, w := range waiting {
		e.send(c, w.begun, w.large)
	}
}

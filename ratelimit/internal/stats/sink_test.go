package stats

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func closing(t *testing.T, s Sink) error {
	ctx, cancel := context.WithTimeout(t.Context(), finalFlush)
	defer cancel()
	return s.Close(ctx)
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	must.Succeed(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

func fill(s Sink) {
	m := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"k": "v"}}}).seriesOf("n", nil)
	s.Count(m, 3)
	s.Gauge(m, 5)
	s.Gauge(m, -5)
	s.Time(m, 3*time.Millisecond, 1)
	s.Time(m, 1250*time.Microsecond, 1)
	s.Time(m, time.Millisecond, 0.25)
	s.Flush()
}

var filled = []string{
	"n.__k=v:3|c", "n.__k=v:5|g", "n.__k=v:0|g", "n.__k=v:-5|g",
	"n.__k=v:3|ms", "n.__k=v:1.250000|ms", "n.__k=v:1|ms|@0.250000",
}

func TestStatsdTCP(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	s := NewStatsd("tcp", ln.Addr().String(), quiet())
	conn, err := ln.Accept()
	must.Succeed(t, err)
	defer conn.Close()
	await.True(t, "ready", s.Ready)
	fill(s)
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
	got, err := io.ReadAll(conn)
	if d := cmp.Diff(strings.Join(filled, "\n")+"\n", string(got)); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestStatsdTCP_unreachable(t *testing.T) {
	ln := listen(t, "127.0.0.1:0")
	ln.Close()
	s := NewStatsd("tcp", ln.Addr().String(), quiet())
	if s.Ready() || s.Count(Series{Name: "n"}, 1) {
		t.Error("took a count without a connection")
	}
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
}

// TestStatsdTCP_restart: the server goes and comes back; nothing counted meanwhile is lost.
func TestStatsdTCP_restart(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	r := NewRegistry(Options{Log: quiet()})
	c := r.Counter("n")
	s := NewStatsd("tcp", ln.Addr().String(), quiet())
	conn, err := ln.Accept()
	must.Succeed(t, err)
	await.True(t, "ready", s.Ready)
	c.Add(1)
	r.flush(s, time.Now())
	for in, line := bufio.NewReader(conn), ""; line != "n:1|c\n"; {
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatal("n:1|c did not come: ", err)
		}
	}

	conn.Close()
	ln.Close()
	await.True(t, "noticed", func() bool { return !s.Ready() })
	c.Add(2)
	r.flush(s, time.Now())
	ln = listen(t, ln.Addr().String())
	if conn, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await.True(t, "ready again", s.Ready)
	c.Add(4)
	r.flush(s, time.Now())
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
	got, _ := io.ReadAll(conn)
	if !strings.Contains(string(got), "n:6|c\n") {
		t.Errorf("got %q, want n:6|c in it", got)
	}
}

// TestStatsdTCP_lastTry: a statsd that is back when the process ends gets the last counts, before the next retry is
// due.
func TestStatsdTCP_lastTry(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	ln.Close()
	r := NewRegistry(Options{Log: quiet()})
	r.Counter("n").Add(7)
	s := NewStatsd("tcp", ln.Addr().String(), quiet())
	tried := make(chan struct{}, 1)
	s.out.(*tcp).hurry <- tried // it has failed once, and now again
	<-tried
	ln = listen(t, ln.Addr().String())
	got := make(chan string, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer conn.Close()
		b, _ := io.ReadAll(conn)
		got <- string(b)
	}()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Run(ctx, s, time.Hour)
	if text := <-got; !strings.Contains(text, "n:7|c\n") {
		t.Errorf("got %q", text)
	}
}

// TestStatsdTCP_stalled: a server that accepts and never reads. Send never waits, the queue is
// bounded, and the shutdown too.
func TestStatsdTCP_stalled(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	s := NewStatsd("tcp", ln.Addr().String(), quiet())
	conn, err := ln.Accept()
	must.Succeed(t, err)
	defer conn.Close()
	await.True(t, "ready", s.Ready)
	m := Series{Name: strings.Repeat("x", 1000)}
	for range 20000 {
		if !s.Count(m, 1) {
			break
		}
		s.Flush()
	}
	if n := s.out.(*tcp).queued(); n > 2*tcpQueue {
		t.Errorf("%d bytes queued", n)
	}
	if s.Count(m, 1) {
		t.Error("a full queue took one more line")
	}
	begin := time.Now()
	if closing(t, s) == nil {
		t.Error("Close does not say that lines were left")
	}
	if d := time.Since(begin); d > 10*finalFlush { // it ends, also where the machine is starved
		t.Errorf("Close took %v", d)
	}
}

// TestTCP_resumesAtALine: what a broken connection had not taken goes out again from the start
// of the cut line.
func TestTCP_resumesAtALine(t *testing.T) {
	s := &tcp{queue: []byte("first:1|c\nsecond:2|c\nthird:3|c\n")}
	if err := s.empty(&cutConn{room: 14}); err == nil {
		t.Fatal("no error")
	}
	if got := string(s.queue); got != "second:2|c\nthird:3|c\n" {
		t.Errorf("left: %q", got)
	}
}

// cutConn takes some bytes and breaks: where a kernel cuts cannot be chosen on a real socket.
type cutConn struct {
	net.Conn
	room int
}

func (c *cutConn) SetWriteDeadline(time.Time) error { return nil }
func (c *cutConn) Write(b []byte) (int, error)      { return min(c.room, len(b)), io.ErrClosedPipe }

func TestStatsdUDP(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer server.Close()
	s := NewStatsd("udp", server.LocalAddr().String(), quiet())
	await.True(t, "ready", s.Ready)
	packet := func() string {
		t.Helper()
		b := make([]byte, 64<<10)
		server.SetReadDeadline(time.Now().Add(time.Minute))
		n, _, err := server.ReadFrom(b)
		must.Succeed(t, err)
		return string(b[:n])
	}
	fill(s)
	if d := cmp.Diff(strings.Join(filled, "\n")+"\n", packet()); d != "" {
		t.Error(d)
	}
	for range 100 {
		s.Count(Series{Name: strings.Repeat("y", 40)}, 1)
	}
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
	for lines := 0; lines < 100; {
		p := packet()
		if len(p) > udpPacket || !strings.HasSuffix(p, "|c\n") {
			t.Fatalf("a datagram of %d bytes: %q", len(p), p)
		}
		lines += strings.Count(p, "\n")
	}
}

func TestLines(t *testing.T) {
	out, w := io.Pipe()
	s := NewLines(w)
	s.now = func() time.Time { return time.Unix(1700000000, 123456789) }
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(out)
		got <- string(b)
	}()
	m := Series{Name: "a\"b", suffix: ".__k=v"}
	s.Count(m, 3)
	s.Gauge(m, -2)
	s.Flush()
	s.Time(m, 1250*time.Microsecond, 0.5)
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
	w.Close()
	text := <-got
	want := `{"level":"debug","ts":1700000000.123456,"logger":"stats","msg":"flushing counter","json":{"name":"a\"b.__k=v","type":"counter","value":"3.000000"}}
{"level":"debug","ts":1700000000.123456,"logger":"stats","msg":"flushing gauge","json":{"name":"a\"b.__k=v","type":"gauge","value":"-2.000000"}}
{"level":"debug","ts":1700000000.123456,"logger":"stats","msg":"flushing timer","json":{"name":"a\"b.__k=v","type":"timer","value":"1.250000","rate":"0.500000"}}
`
	if d := cmp.Diff(want, text); d != "" {
		t.Error(d)
	}
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// TestLines_blocked: a pipe without a reader blocks nothing.
func TestLines_blocked(t *testing.T) {
	out, w := io.Pipe()
	s := NewLines(w)
	for range lineBuffers + 1 {
		s.Count(Series{Name: "n"}, 1)
		s.Flush()
	}
	if s.Ready() || s.Count(Series{Name: "n"}, 1) {
		t.Error("still takes counts")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Close(ctx) == nil {
		t.Error("Close does not say that lines were left")
	}
	out.Close() // lets the writer's goroutine end
	<-s.closed
}

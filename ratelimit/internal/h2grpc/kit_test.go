package h2grpc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/h2grpc"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
	"gatehouse/shared/certs/certtest"
	"gatehouse/shared/must"
)

const (
	service3 = "envoy.service.ratelimit.v3.RateLimitService"
	callPath = "/" + service3 + "/ShouldRateLimit"
	refusals = "ratelimit_server.http2.refused.__reason="
	patience = 20 * time.Second
)

// rig is a server on a listener, with one rule: key k, no end of requests.
type rig struct {
	stats   *stats.Registry
	service *service.Service
	health  *server.Health
	front   server.Front
	network string
	addr    string
}

type rigOptions struct {
	server.GRPCOptions
	store   counter.Store
	network string // tcp or unix
	clock   func() time.Time
}

const rule = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 4000000000}}\n"

func newRig(t testing.TB, change func(o *rigOptions)) *rig {
	t.Helper()
	r := &rig{stats: stats.NewRegistry(stats.Options{}), health: server.NewHealth()}
	o := rigOptions{network: "tcp", store: memory.New(memory.Options{})}
	o.Native, o.MaxStreams, o.Reflection = true, 1024, true
	o.Health, o.Stats, o.Log = r.health, r.stats, slog.New(slog.DiscardHandler)
	if change != nil {
		change(&o)
	}
	r.service = service.New(service.Options{
		Store: o.store, Clock: o.clock, Stats: r.stats,
		Caps: service.Caps{Descriptors: 256, Entries: 64, TextBytes: 64 << 10},
	})
	o.Service = r.service
	rules, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "rules.yaml", Text: []byte(rule)}},
		limits.Options{Settings: limits.Settings{NearRatio: 0.8}, Stats: r.stats})
	must.Succeed(t, err)
	r.service.SetRules(rules)
	r.health.Set(server.Running, true)
	r.front = server.NewFront(o.GRPCOptions)
	at := "127.0.0.1:0"
	if o.network == "unix" {
		dir, err := os.MkdirTemp("", "h2grpc") // t.TempDir's name is too long for a socket
		must.Succeed(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		at = filepath.Join(dir, "s")
	}
	l, err := net.Listen(o.network, at)
	must.Succeed(t, err)
	r.network, r.addr = o.network, l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.front.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once
		r.front.Shutdown(ctx)
		if err := <-served; err != nil && !errors.Is(err, h2grpc.ErrServerClosed) {
			t.Error(err)
		}
	})
	return r
}

// counted is a counter's value.
func (r *rig) counted(name string) (n int64) {
	r.stats.Each(func(got string, kind stats.Kind, value int64) {
		if got == name && kind == stats.KindCounter {
			n = value
		}
	})
	return n
}

// refused waits until connections or streams were refused for a reason that many times.
func (r *rig) refused(t testing.TB, why string, want int64) {
	t.Helper()
	await.True(t, fmt.Sprintf("%s is %d", refusals+why, want), func() bool { return r.counted(refusals+why) >= want })
	if got := r.counted(refusals + why); got != want {
		t.Errorf("%s is %d, want %d", refusals+why, got, want)
	}
}

// response is what has come on one stream.
type response struct {
	fields   [][]hpack.HeaderField // a block each
	body     []byte
	sizes    []int // of DATA frames
	ended    bool  // END_STREAM
	reset    bool
	code     http2.ErrCode
	followed bool // a frame other than RST_STREAM came behind END_STREAM
}

// get is a field of any block.
func (r *response) get(name string) string {
	for _, block := range r.fields {
		for _, f := range block {
			if f.Name == name {
				return f.Value
			}
		}
	}
	return ""
}

// String says what a client makes of it.
func (r *response) String() string {
	var s []string
	if len(r.fields) > 0 {
		s = append(s, r.get(":status"), "grpc-status "+r.get("grpc-status"))
		if m := r.get("grpc-message"); m != "" {
			s = append(s, m)
		}
	}
	if len(r.body) > 0 {
		s = append(s, fmt.Sprintf("%d bytes", len(r.body)))
	}
	if !r.ended && !r.reset {
		s = append(s, "open")
	}
	if r.reset {
		s = append(s, "reset "+r.code.String())
	}
	return strings.Join(s, ", ")
}

// ok reports whether it is an answer with a message that allows the request.
func (r *response) ok() bool {
	if !r.ended || r.get(":status") != "200" || r.get("grpc-status") != "0" ||
		!strings.HasPrefix(r.get("content-type"), "application/grpc") || len(r.fields) != 2 || len(r.body) < 5 {
		return false
	}
	var m pb.RateLimitResponse
	return proto.Unmarshal(r.body[5:], &m) == nil && m.OverallCode == pb.RateLimitResponse_OK && len(m.Statuses) == 1
}

// peer is a client that sends the frames a test wants.
type peer struct {
	t       testing.TB
	conn    net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer

	settings  map[http2.SettingID]uint32
	settled   int // SETTINGS acknowledgements
	responses map[uint32]*response
	pings     [][8]byte // of the server
	pongs     [][8]byte
	goAway    []http2.GoAwayFrame
	why       []string // debug data of those
	windows   map[uint32]uint32
	err       error // of reading
}

// dialRaw connects and sends nothing.
func (r *rig) dialRaw(t testing.TB) *peer {
	t.Helper()
	conn, err := net.Dial(r.network, r.addr)
	must.Succeed(t, err)
	return newPeer(t, conn)
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	p := &peer{t: t, conn: conn, settings: map[http2.SettingID]uint32{}, responses: map[uint32]*response{},
		windows: map[uint32]uint32{}}
	p.framer = http2.NewFramer(conn, conn)
	p.framer.AllowIllegalWrites = true
	p.framer.SetMaxReadFrameSize(1<<24 - 1)
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.encoder = hpack.NewEncoder(&p.block)
	return p
}

// dial connects, exchanges SETTINGS and acknowledges the server's.
func (r *rig) dial(t testing.TB, settings ...http2.Setting) *peer {
	t.Helper()
	p := r.dialRaw(t)
	p.greet(settings...)
	return p
}

func (p *peer) greet(settings ...http2.Setting) {
	p.t.Helper()
	p.write([]byte(http2.ClientPreface))
	p.must(p.framer.WriteSettings(settings...))
	p.until("SETTINGS", func() bool { return len(p.settings) > 0 && p.settled > 0 })
	p.must(p.framer.WriteSettingsAck())
}

func (p *peer) must(err error) {
	p.t.Helper()
	must.Succeed(p.t, err)
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	_, err := p.conn.Write(b)
	p.must(err)
}

// batch sends in one write what f sends.
func (p *peer) batch(f func()) {
	p.t.Helper()
	conn, framer := p.conn, p.framer
	var b bytes.Buffer
	p.conn, p.framer = collector{conn, &b}, http2.NewFramer(&b, conn)
	p.framer.AllowIllegalWrites = true
	f()
	p.conn, p.framer = conn, framer
	p.write(b.Bytes())
}

type collector struct {
	net.Conn
	b *bytes.Buffer
}

func (c collector) Write(b []byte) (int, error) { return c.b.Write(b) }

// next takes one frame; false when there are no more.
func (p *peer) next() bool {
	frame, err := p.framer.ReadFrame()
	if err != nil {
		p.err = err
		return false
	}
	id := frame.Header().StreamID
	on := func() *response {
		if p.responses[id] == nil {
			p.responses[id] = &response{}
		}
		if p.responses[id].ended {
			p.responses[id].followed = true
		}
		return p.responses[id]
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			p.settled++
			break
		}
		f.ForeachSetting(func(s http2.Setting) error { p.settings[s.ID] = s.Val; return nil })
	case *http2.MetaHeadersFrame:
		r := on()
		r.fields = append(r.fields, append([]hpack.HeaderField(nil), f.Fields...))
		r.ended = f.StreamEnded()
	case *http2.DataFrame:
		r := on()
		r.body = append(r.body, f.Data()...)
		r.sizes = append(r.sizes, int(f.Length))
		r.ended = f.StreamEnded()
	case *http2.RSTStreamFrame:
		if p.responses[id] == nil {
			p.responses[id] = &response{}
		}
		p.responses[id].reset, p.responses[id].code = true, f.ErrCode
	case *http2.PingFrame:
		if f.IsAck() {
			p.pongs = append(p.pongs, f.Data)
		} else {
			p.pings = append(p.pings, f.Data)
		}
	case *http2.GoAwayFrame:
		p.goAway = append(p.goAway, http2.GoAwayFrame{FrameHeader: f.FrameHeader, LastStreamID: f.LastStreamID,
			ErrCode: f.ErrCode})
		p.why = append(p.why, string(f.DebugData()))
	case *http2.WindowUpdateFrame:
		p.windows[id] += f.Increment
	default:
		p.t.Fatalf("unexpected %v", frame)
	}
	return true
}

// until takes frames until a condition holds.
func (p *peer) until(what string, f func() bool) {
	p.t.Helper()
	for !f() {
		if !p.next() {
			p.t.Fatalf("waiting for %s: %v (GOAWAY %v %q)", what, p.err, p.goAway, p.why)
		}
	}
}

// response waits until a stream has ended.
func (p *peer) response(id uint32) *response {
	p.t.Helper()
	p.until(fmt.Sprintf("the answer on stream %d", id),
		func() bool { return p.responses[id] != nil && (p.responses[id].ended || p.responses[id].reset) })
	return p.responses[id]
}

// sync waits until the server has taken all that was sent, and returns what has come on a stream.
func (p *peer) sync(id uint32) *response {
	p.t.Helper()
	for range 2 { // the first pong may come before the answers to what was read with it
		mark := [8]byte{byte(len(p.pongs)), byte(len(p.pongs) >> 8), 's', 'y', 'n', 'c'}
		p.must(p.framer.WritePing(false, mark))
		p.until("a pong", func() bool { return len(p.pongs) > 0 && p.pongs[len(p.pongs)-1] == mark })
	}
	if p.responses[id] == nil {
		return &response{}
	}
	return p.responses[id]
}

// gone waits until the connection has ended, and returns the error code of the last GOAWAY.
func (p *peer) gone() (code http2.ErrCode, why string) {
	p.t.Helper()
	for p.next() {
	}
	if errors.Is(p.err, os.ErrDeadlineExceeded) {
		p.t.Fatal("the connection has not ended")
	}
	if len(p.goAway) == 0 {
		p.t.Fatalf("no GOAWAY before %v", p.err)
	}
	return p.goAway[len(p.goAway)-1].ErrCode, p.why[len(p.why)-1]
}

// ended reports whether reading stops cleanly, without another frame but those of a closing TLS connection.
func (p *peer) eof() bool {
	for p.next() {
	}
	return errors.Is(p.err, io.EOF)
}

func field(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }

// fields are those of a call, with some replaced (by name), added or, with an empty value, left out.
func fields(change ...hpack.HeaderField) []hpack.HeaderField {
	all := []hpack.HeaderField{
		field(":method", "POST"), field(":scheme", "http"), field(":path", callPath), field(":authority", "ratelimit"),
		field("content-type", "application/grpc"), field("te", "trailers"),
	}
	for _, c := range change {
		found := false
		for i := range all {
			if all[i].Name == c.Name {
				all[i].Value, found = c.Value, true
			}
		}
		if !found {
			all = append(all, c)
		}
	}
	var kept []hpack.HeaderField
	for _, f := range all {
		if f.Value != "" {
			kept = append(kept, f)
		}
	}
	return kept
}

func (p *peer) encode(fields []hpack.HeaderField) []byte {
	p.block.Reset()
	for _, f := range fields {
		p.must(p.encoder.WriteField(f))
	}
	return bytes.Clone(p.block.Bytes())
}

// headers sends HEADERS.
func (p *peer) headers(id uint32, end bool, fields []hpack.HeaderField) {
	p.t.Helper()
	p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode(fields),
		EndHeaders: true,
		EndStream:  end}))
}

func (p *peer) data(id uint32, end bool, b []byte) {
	p.t.Helper()
	p.must(p.framer.WriteData(id, end, b))
}

// call sends a whole call.
func (p *peer) call(id uint32) {
	p.t.Helper()
	p.headers(id, false, fields())
	p.data(id, true, request())
}

// calls makes a call that has to be answered, and shows that the connection is well.
func (p *peer) calls(id uint32) {
	p.t.Helper()
	p.call(id)
	if r := p.response(id); !r.ok() {
		p.t.Fatalf("a call: %v", r)
	}
}

// message puts the prefix of gRPC before a message.
func message(b []byte) []byte {
	return append([]byte{0, byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}, b...)
}

// request is the body of a call.
func request() []byte { return message(rawRequest("d", "k", "v")) }

func rawRequest(domain, key, value string) []byte {
	b, err := proto.Marshal(&pb.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitpb.RateLimitDescriptor{
		{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}})
	if err != nil {
		panic(err)
	}
	return b
}

// slowStore is the in-process store behind a gate, so that calls wait in it.
type slowStore struct {
	memory *memory.Store
	gate   chan struct{} // closed: open
}

func newSlowStore() *slowStore {
	return &slowStore{memory.New(memory.Options{}), make(chan struct{})}
}

func (s *slowStore) Add(ctx context.Context, r *counter.Request) error {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.memory.Add(ctx, r)
}

// native is what server.NewFront made.
type native interface {
	Buffered() int64
	Watches() int
	Conns() int
	TickAt(time.Time)
	Held() (streams, blocked, bytes int)
}

func (r *rig) native() native  { return r.front.(native) }
func (r *rig) buffered() int64 { return r.native().Buffered() }
func (r *rig) watches() int    { return r.native().Watches() }

func (s *slowStore) Peek(ctx context.Context, h *counter.Hit) error { return s.memory.Peek(ctx, h) }

func (s *slowStore) Reset(ctx context.Context, h *counter.Hit) error { return s.memory.Reset(ctx, h) }

func (s *slowStore) Close() {}

// selfSigned is a server's config for localhost, and the roots of its certificate.
func selfSigned(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	ca := certtest.NewCA(t, "test", time.Hour)
	pair := ca.Issue("localhost")
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	must.Succeed(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	return &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}, roots
}

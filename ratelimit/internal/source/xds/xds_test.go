package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/source/xds/xdstest"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Client, and what it handed over. A set that holds a domain "bad" is refused.
type world struct {
	t     *testing.T
	c     *Client
	stats *stats.Registry
	log   logtest.Buffer

	mu   sync.Mutex
	sets []string
}

// start runs a Client that tries again at once.
func start(t *testing.T, target string, o Options) *world {
	t.Helper()
	w := &world{t: t, stats: stats.NewRegistry(stats.Options{})}
	o.Target, o.Type, o.Stats, o.Log = target, rulefile.ResourceType, w.stats,
		slog.New(slog.NewTextHandler(&w.log, nil))
	if o.MaxRetry == 0 {
		o.DialRetry, o.StreamRetry, o.MaxRetry = 5*time.Millisecond, 5*time.Millisecond, 20*time.Millisecond
	}
	w.c = NewClient(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.c.Run(ctx, w.apply); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) apply(s Set) error {
	text := s.Version + ":"
	var names []string
	for _, b := range s.Resources {
		var c rlsconf.RateLimitConfig
		if err := proto.Unmarshal(b, &c); err != nil {
			names = append(names, "junk")
			continue
		}
		names = append(names, c.Domain)
	}
	slices.Sort(names)
	for _, n := range names {
		text += " " + n
	}
	if s.Err != nil {
		text += " error: " + s.Err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets = append(w.sets, text)
	if slices.Contains(names, "bad") {
		return errors.New("r: domain \"bad\": this is bad\nr: and this too")
	}
	return nil
}

func (w *world) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.sets, " | ")
}

func (w *world) await(what string, cond func() bool) {
	w.t.Helper()
	await.True(w.t, what, cond, func() string {
		return fmt.Sprintf("sets %s; state %+v; log:\n%s", w.seen(), w.c.State(), &w.log)
	})
}

// until waits for the sets handed over so far.
func (w *world) until(want ...string) {
	w.t.Helper()
	w.await(strings.Join(want, " | "), func() bool { return w.seen() == strings.Join(want, " | ") })
}

func (w *world) stat(name string) (value int64) {
	w.stats.Each(func(n string, _ stats.Kind, v int64) {
		if n == name {
			value = v
		}
	})
	return value
}

func domain(name string) *rlsconf.RateLimitConfig {
	return &rlsconf.RateLimitConfig{Name: "r-" + name, Domain: name}
}

// said is what a request holds besides the node.
func said(r *discoverypb.DiscoveryRequest) string {
	text := fmt.Sprintf("version %q nonce %q", r.VersionInfo, r.ResponseNonce)
	if d := r.ErrorDetail; d != nil {
		text += fmt.Sprintf(" refused %s: %s", codes.Code(d.Code), d.Message)
	}
	return text
}

// TestClient goes through versions, nonces and verdicts: the first set, an update, one that
// is refused, the next good one, and none at all.
func TestClient(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	w := start(t, p.Addr, Options{Settings: Settings{NodeID: "n1"}, NodeMetadata: map[string]string{"zone": "z=1"},
		Headers: map[string]string{"x-key": "v:1", "x-bin": "\x00\x01"}, nackAgain: time.Millisecond})
	steps := []struct {
		version string
		set     []*rlsconf.RateLimitConfig
		applied string
		said    string // in answer
	}{
		{"1", []*rlsconf.RateLimitConfig{domain("a")}, "1: a", `version "1"`},
		{"2", []*rlsconf.RateLimitConfig{domain("b"), domain("a")}, "2: a b", `version "2"`},
		{"3", []*rlsconf.RateLimitConfig{domain("bad")}, "3: bad",
			`version "2" refused InvalidArgument: r: domain "bad": this is bad` + "\nr: and this too"},
		{"4", []*rlsconf.RateLimitConfig{domain("c")}, "4: c", `version "4"`},
		{"5", []*rlsconf.RateLimitConfig{domain("c")}, "", `version "5"`},
		// the same under another version is not applied again
		{"6", nil, "6:", `version "6"`},
	}
	if got := said(p.Request(0)); got != `version "" nonce ""` {
		t.Errorf("the first request: %s", got)
	}
	var applied []string
	next := 1
	for _, s := range steps {
		p.Set(s.version, s.set...)
		got := ""
		for {
			answer := p.Request(next)
			next++
			if answer.ResponseNonce == "" {
				t.Errorf("the answer to version %s has no nonce", s.version)
			}
			before := got
			got = strings.Replace(said(answer), fmt.Sprintf(" nonce %q", answer.ResponseNonce), "", 1)
			if got != steps[2].said || s.version == "3" { // else the refusal of version 3 once more
				break
			}
			if before != "" && before != got {
				t.Errorf("refused for another reason: %s", got)
			}
		}
		if got != s.said {
			t.Errorf("the answer to version %s: %s, want %s", s.version, got, s.said)
		}
		if s.applied != "" {
			applied = append(applied, s.applied)
		}
		w.until(applied...)
	}
	for _, r := range p.Requests() {
		if r.Node.GetId() != "n1" || r.Node.GetMetadata().GetFields()["zone"].GetStringValue() != "z=1" ||
			r.TypeUrl != rulefile.ResourceType || len(r.ResourceNames) != 0 {
			t.Errorf("a request says %v", r)
		}
	}
	if h := p.Headers()[0]; h.Get("x-key")[0] != "v:1" || h.Get("x-bin")[0] != "\x00\x01" {
		t.Errorf("headers: %v", h)
	}
	if !strings.Contains(w.log.String(), "NO RESOURCES ANY MORE") {
		t.Errorf("no warning: %s", &w.log)
	}
	s := w.c.State()
	if !s.Connected || s.Version != "6" || s.Resources != 0 || s.NackedVersion != "3" ||
		!strings.Contains(s.Text(), "this is bad\n  r: and this too") {
		t.Errorf("state %+v\n%s", s, s.Text())
	}
	if n := w.stat("ratelimit.xds.nack"); n < 1 {
		t.Errorf("%d sets refused", n)
	}
	for name, want := range map[string]int64{"ack": 5, "connected": 1, "connect_failure": 0, "stream_failure": 0} {
		if got := w.stat("ratelimit.xds." + name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// TestClient_returns: the server goes and comes back, once after a good set and once after a refused
// one. A new stream claims what is in force, never what was refused, and no nonce.
func TestClient_returns(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	w := start(t, p.Addr, Options{})
	w.until("1: a")
	p.Request(1)
	for i, refused := range []bool{false, true} {
		if refused {
			p.Set("2", domain("bad"))
			w.until("1: a", "2: bad")
		}
		failures := w.stat("ratelimit.xds.connect_failure")
		p.Kill()
		w.await("the dial fails", func() bool { return w.stat("ratelimit.xds.connect_failure") > failures+1 })
		if s := w.c.State(); s.Connected || s.Version != "1" || !strings.Contains(s.Text(), "connection refused") {
			t.Errorf("while the server is away: %s", s.Text())
		}
		before := len(p.Requests())
		p.Serve()
		if got := said(p.Request(before)); got != `version "1" nonce ""` {
			t.Errorf("return %d: the first request says %s", i, got)
		}
	}
	p.Set("3", domain("c"))
	w.await("a set from the server that returned", func() bool { return strings.HasSuffix(w.seen(), "| 3: c") })
	w.await("connected", func() bool { return w.c.State().Connected })
}

// TestClient_refusedSetAgain: this library's server sends a refused set again whenever it is refused. It is checked
// once, and refused ever more slowly.
func TestClient_refusedSetAgain(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("bad"))
	began := time.Now()
	w := start(t, p.Addr, Options{nackAgain: 50 * time.Millisecond})
	p.Request(3)                                      // asked, and refused three times
	n, most := w.stat("ratelimit.xds.nack"), int64(1) // at 0, 50, 150, 350, 750 ms
	for at := 50 * time.Millisecond; at < time.Since(began); at = 2*at + 50*time.Millisecond {
		most++
	}
	if n > most {
		t.Errorf("refused %d times within %v, want at most %d", n, time.Since(began), most)
	}
	w.until("1: bad")
	p.Set("2", domain("a"))
	w.until("1: bad", "2: a")
}

// TestClient_oversized: a response that is too long breaks the stream; the log says which setting allows more.
func TestClient_oversized(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	w := start(t, p.Addr, Options{Settings: Settings{MaxMessage: 1000}})
	w.until("1: a")
	p.Set("2", domain(strings.Repeat("x", 1000)))
	w.await("the stream breaks again and again", func() bool { return w.stat("ratelimit.xds.stream_failure") > 2 })
	if log := w.log.String(); !strings.Contains(log, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES allows more") {
		t.Error(log)
	}
	if s := w.c.State(); s.Version != "1" {
		t.Errorf("%+v", s)
	}
	p.Set("3", domain("c"))
	w.until("1: a", "3: c")
}

// TestClient_reconnect leaves a pause, or a stream, at once.
func TestClient_reconnect(t *testing.T) {
	t.Parallel()
	p := xdstest.New(t)
	p.Set("1", domain("a"))
	p.Kill()
	w := start(t, p.Addr,
		Options{Settings: Settings{DialRetry: time.Hour, StreamRetry: time.Hour, MaxRetry: time.Hour}})
	w.await("the dial fails", func() bool { return w.stat("ratelimit.xds.connect_failure") == 1 })
	p.Serve()
	w.c.Reconnect()
	w.until("1: a")
	w.await("connected", func() bool { return w.c.State().Connected })
	w.c.Reconnect()
	w.await("a second stream", func() bool { return len(p.Streams()) == 2 })
	if n := w.stat("ratelimit.xds.stream_failure"); n != 0 {
		t.Errorf("%d failures", n)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/net/http2"

	"gatehouse/shared/child"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// This file runs example/: its envoy.yaml in a real Envoy, its rules in a real daemon, HTTP from a client
// through Envoy to an upstream. Only addresses change, time-outs (a starved machine is not a dead daemon) and
// units: a minute becomes a year, so that no window ends under a test.

// envoyProgram is Envoy: ENVOY_BIN, on PATH, or where .ci/envoy puts it, which also says why it could not.
func envoyProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs Envoy")
	}
	if path := os.Getenv("ENVOY_BIN"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	found, _ := filepath.Glob("../.run/envoy/lib/python*/site-packages/envoy/_bin/envoy") // the pattern is well-formed
	if len(found) > 0 {
		path, err := filepath.Abs(found[0])
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	missing := "no Envoy: name one by ENVOY_BIN, or have .ci/envoy fetch one"
	if reason, err := os.ReadFile("../.run/envoy-missing"); err == nil {
		missing = "no Envoy: " + strings.TrimSpace(string(reason))
	} else if os.Getenv("REQUIRE_SERVERS") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// exampleConfig is envoy.yaml, decoded.
func exampleConfig(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("example/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(string(text), "unit: MINUTE", "unit: YEAR")), &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// exampleRules is the example's file of rules, per year.
func exampleRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("example/config/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "unit: minute", "unit: year")
}

// dig goes down into decoded YAML: by name into a map, by index into a list.
func dig(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			if l, _ := v.([]any); step < len(l) {
				v = l[step]
			} else {
				v = nil
			}
		}
		if v == nil {
			t.Fatalf("envoy.yaml has nothing at %v", path[:i+1])
		}
	}
	return v
}

// digMap is dig for what a test changes.
func digMap(t *testing.T, v any, path ...any) map[string]any {
	t.Helper()
	m, ok := dig(t, v, path...).(map[string]any)
	if !ok {
		t.Fatalf("envoy.yaml has no map at %v", path)
	}
	return m
}

var (
	managerPath = []any{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	clusterPath = []any{"static_resources", "clusters", 0}
)

// limitFilters are the two filters of the example that ask the daemon: the one of stage 0, that of stage 1.
func limitFilters(t *testing.T, config map[string]any) (open, strict map[string]any) {
	t.Helper()
	filters := dig(t, config, append(managerPath[:len(managerPath):len(managerPath)], "http_filters")...)
	return digMap(t, filters, 1, "typed_config"), digMap(t, filters, 2, "typed_config")
}

// patient has Envoy wait for whoever is slow.
func patient(t *testing.T, config map[string]any) {
	open, strict := limitFilters(t, config)
	open["timeout"], strict["timeout"] = "30s", "30s"
	cluster := digMap(t, config, clusterPath...)
	cluster["connect_timeout"] = "30s"
	digMap(t, cluster, "health_checks", 0)["timeout"] = "30s"
	options := digMap(t, cluster, "typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
	digMap(t, options, "explicit_http_config", "http2_protocol_options", "connection_keepalive")["timeout"] = "30s"
}

// gateway is one Envoy of a test, with its upstream.
type gateway struct {
	*child.Process
	addr, admin string
	passed      atomic.Int64 // requests that the upstream has got
}

// startEnvoy runs the example's Envoy in front of daemons, given by their gRPC addresses.
func startEnvoy(t *testing.T, daemons []string, changes ...func(*testing.T, map[string]any)) *gateway {
	t.Helper()
	program := envoyProgram(t)
	g := new(gateway)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.passed.Add(1)
		io.WriteString(w, "upstream\n")
	}))
	t.Cleanup(upstream.Close)

	config := exampleConfig(t)
	for _, change := range changes {
		change(t, config)
	}
	place := func(addr string) map[string]any {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]any{"socket_address": map[string]any{"address": host, "port_value": n}}
	}
	digMap(t, config, "admin")["address"] = place("127.0.0.1:0")
	digMap(t, config, "static_resources", "listeners", 0)["address"] = place("127.0.0.1:0")
	for i, addrs := range [][]string{daemons, {upstream.Listener.Addr().String()}} {
		var endpoints []any
		for _, addr := range addrs {
			endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": place(addr)}})
		}
		digMap(t, config, "static_resources", "clusters", i, "load_assignment", "endpoints", 0)["lb_endpoints"] = endpoints
	}

	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file, admin := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	log := newLines()
	cmd := exec.Command(program, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if g.Process, err = child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("log of Envoy:\n%s", log.text())
		}
	})
	g.await(t, log, admin)
	return g
}

// await waits until Envoy has told its addresses and listens, for at most a minute.
func (g *gateway) await(t *testing.T, log *lines, admin string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		select {
		case <-g.Ended():
			t.Fatalf("Envoy ended:\n%s", log.text())
		default:
		}
		text, err := os.ReadFile(admin)
		if err != nil || len(text) == 0 {
			continue
		}
		g.admin = string(text)
		if status, _ := get(t, g.admin+"/ready"); status != 200 {
			continue
		}
		_, page := get(t, g.admin+"/listeners?format=json")
		var listening struct {
			Statuses []struct {
				Address struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if json.Unmarshal([]byte(page), &listening) == nil && len(listening.Statuses) == 1 {
			g.addr = "127.0.0.1:" + strconv.Itoa(listening.Statuses[0].Address.Socket.Port)
			return
		}
	}
	t.Fatalf("Envoy is not ready:\n%s", log.text())
}

// answer is what a client gets: a status, and the daemon's headers, -1 where they are missing.
type answer struct{ status, limit, remaining int }

// caller is an HTTP client at an address of its own.
func caller(from string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16}}
}

// ask sends a GET with headers, "name: value" each.
func (g *gateway) ask(c *http.Client, path string, headers ...string) (answer, error) {
	req, err := http.NewRequest("GET", "http://"+g.addr+path, nil)
	if err != nil {
		return answer{}, err
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if passed := string(body) == "upstream\n"; passed != (resp.StatusCode == 200) {
		return answer{}, fmt.Errorf("%s: %s with the body %q", path, resp.Status, body)
	}
	number := func(name string) int {
		if n, err := strconv.Atoi(resp.Header.Get(name)); err == nil {
			return n
		}
		return -1
	}
	got := answer{resp.StatusCode, number("RateLimit-Limit"), number("RateLimit-Remaining")}
	const year = 365 * 24 * 3600
	if reset := number("RateLimit-Reset"); (reset >= 0) != (got.limit >= 0) || reset > year {
		return got, fmt.Errorf("%s: RateLimit-Reset is %d", path, reset)
	}
	if over := resp.StatusCode == 429; over != (resp.Header.Get("X-Envoy-Ratelimited") == "true") {
		return got, fmt.Errorf("%s: %s with X-Envoy-Ratelimited %q", path, resp.Status, resp.Header.Get("X-Envoy-Ratelimited"))
	}
	return got, nil
}

// want asks once and compares.
func (g *gateway) want(t *testing.T, c *http.Client, want answer, path string, headers ...string) {
	t.Helper()
	if got, err := g.ask(c, path, headers...); err != nil || got != want {
		t.Errorf("%s %q: %v %v, want %v", path, headers, got, err, want)
	}
}

// answers asks until the answer has the daemon's headers.
func (g *gateway) answers(t *testing.T, c *http.Client, path string, headers ...string) {
	t.Helper()
	eventually(t, path+" is limited", func() bool {
		got, err := g.ask(c, path, headers...)
		return err == nil && got.status == 200 && got.limit > 0
	})
}

// exampleDaemon is a daemon with the example's rules on a Redis.
func exampleDaemon(t *testing.T, redis string, more map[string]string) *process {
	t.Helper()
	env := map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_URL": redis, "KVSTORE_TIMEOUT": "20s", "STORE_STALL": "20s", "LIMIT_RESPONSE_HEADERS_ENABLED": "true"}
	for name, value := range more {
		env[name] = value
	}
	return start(t, exampleRules(t), env)
}

// What each route of the example answers, and how it got its descriptor.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoyProgram(t)
	p := exampleDaemon(t, testdb.Redis(t).URL(), nil)
	g := startEnvoy(t, []string{p.grpc}, patient)
	here, there := caller("127.0.0.1"), caller("127.0.0.9")
	f := func(name string, test func(t *testing.T)) { t.Run(name, test) }

	f("remote address", func(t *testing.T) {
		for _, c := range []*http.Client{here, there} {
			for left := 2; left >= 0; left-- {
				g.want(t, c, answer{200, 3, left}, "/login?again="+strconv.Itoa(left))
			}
			passed := g.passed.Load()
			g.want(t, c, answer{429, 3, 0}, "/login")
			if g.passed.Load() != passed {
				t.Error("a request over the limit reached the upstream")
			}
		}
		// What a client writes into x-forwarded-for makes nobody of it.
		g.want(t, here, answer{429, 3, 0}, "/login", "X-Forwarded-For: 192.0.2.1")
	})
	f("header", func(t *testing.T) {
		for left := 9; left >= 0; left-- {
			g.want(t, here, answer{200, 10, left}, "/api/x", "X-User: ann")
		}
		g.want(t, here, answer{429, 10, 0}, "/api/y", "X-User: ann")
		g.want(t, here, answer{200, 10, 9}, "/api/y", "X-User: bob")
		g.want(t, here, answer{200, -1, -1}, "/api/y") // no header, no descriptor
	})
	f("hits addend", func(t *testing.T) {
		g.want(t, here, answer{200, 10, 5}, "/report", "X-User: cid")
		g.want(t, here, answer{200, 10, 4}, "/api/", "X-User: cid") // the same counter
		g.want(t, here, answer{429, 10, 0}, "/report", "X-User: cid")
	})
	f("metadata", func(t *testing.T) {
		g.want(t, here, answer{200, 6, 5}, "/gold/", "X-User: ann")
		g.want(t, here, answer{200, 2, 1}, "/free/", "X-User: ann")
		g.want(t, here, answer{200, 2, 0}, "/free/", "X-User: ann")
		g.want(t, here, answer{429, 2, 0}, "/free/", "X-User: ann")
		g.want(t, here, answer{200, 6, 4}, "/gold/", "X-User: ann")
	})
	f("override", func(t *testing.T) {
		for left := 3; left >= 0; left-- {
			g.want(t, here, answer{200, 4, left}, "/partner/", "X-Partner: acme") // the rules say 1
		}
		g.want(t, here, answer{429, 4, 0}, "/partner/", "X-Partner: acme")
	})
	f("shadow", func(t *testing.T) {
		for _, left := range []int{1, 0, 0, 0} {
			g.want(t, here, answer{200, 2, left}, "/search")
		}
		for name, want := range map[string]int64{"over_limit": 2, "shadow_mode": 2, "total_hits": 4} {
			if got := stat(t, p, "ratelimit.service.rate_limit.shop.feature_search."+name); got != want {
				t.Errorf("%s is %d, want %d", name, got, want)
			}
		}
	})
	f("unlimited", func(t *testing.T) {
		calls := stat(t, p, "ratelimit_server.ShouldRateLimit.total_requests")
		g.want(t, here, answer{200, -1, -1}, "/")
		if got := stat(t, p, "ratelimit_server.ShouldRateLimit.total_requests"); got != calls {
			t.Error("the daemon was asked")
		}
	})
}

// Without a decision /api passes and /login does not, whether Redis or the daemon is gone, says nothing, or
// refuses what it is asked.
func TestEnvoy_failure(t *testing.T) {
	t.Parallel()
	envoyProgram(t)
	redis := testdb.Private(t, localserver.RedisOptions{})
	env := map[string]string{"GRPC_HOST": "127.0.0.5", "GRPC_PORT": freePort(t, "127.0.0.5"), "MAX_TEXT_BYTES": "1000"}
	p := exampleDaemon(t, redis.Addr(), env)
	g := startEnvoy(t, []string{p.grpc}, patient)
	hasty := startEnvoy(t, []string{p.grpc}) // with the example's own time-outs
	c := caller("127.0.0.1")
	undecided := func(t *testing.T, g *gateway) {
		t.Helper()
		g.want(t, c, answer{200, -1, -1}, "/api/", "X-User: ann")
		g.want(t, c, answer{503, -1, -1}, "/login")
	}

	g.want(t, c, answer{200, 10, 9}, "/api/", "X-User: ann")
	g.want(t, c, answer{200, 3, 2}, "/login")
	g.want(t, c, answer{200, -1, -1}, "/api/", "X-User: "+strings.Repeat("x", 1001))

	redis.Kill()
	undecided(t, g)
	if err := redis.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	g.answers(t, c, "/api/", "X-User: bob")

	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	undecided(t, hasty)
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.answers(t, c, "/api/", "X-User: cid")

	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	undecided(t, g)
	exampleDaemon(t, redis.Addr(), env)
	g.answers(t, c, "/api/", "X-User: dan")
}

// Two daemons are restarted one after the other under load: no request fails, and none is counted twice.
func TestEnvoy_restart(t *testing.T) {
	t.Parallel()
	envoyProgram(t)
	const limit = 100_000_000
	rules := strings.Replace(exampleRules(t), "requests_per_unit: 3}", fmt.Sprintf("requests_per_unit: %d}", limit), 1)
	redis := testdb.Redis(t).URL()
	var daemons [2]*process
	var envs [2]map[string]string
	for i, host := range []string{"127.0.0.6", "127.0.0.7"} {
		envs[i] = map[string]string{
			"BACKEND_TYPE": "redis", "KVSTORE_URL": redis, "KVSTORE_TIMEOUT": "20s", "STORE_STALL": "20s",
			"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "GRPC_HOST": host, "GRPC_PORT": freePort(t, host), "DRAIN_DELAY": "2s",
		}
		daemons[i] = start(t, rules, envs[i])
	}
	g := startEnvoy(t, []string{daemons[0].grpc, daemons[1].grpc}, patient)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var sent atomic.Int64
	var workers sync.WaitGroup
	var mu sync.Mutex
	failures := map[string]int{}
	for range 4 {
		c := caller("127.0.0.1")
		workers.Go(func() {
			for ctx.Err() == nil {
				sent.Add(1)
				if got, err := g.ask(c, "/login"); err != nil || got.status != 200 || got.limit != limit {
					mu.Lock()
					failures[fmt.Sprint(got, err)]++
					mu.Unlock()
				}
				time.Sleep(2 * time.Millisecond) // others need the machine too
			}
		})
	}
	defer workers.Wait()
	defer stop()
	busy := func(p *process) {
		t.Helper()
		eventually(t, "both daemons are asked", func() bool {
			return stat(t, p, "ratelimit_server.ShouldRateLimit.total_requests") > 20
		})
	}
	for i := range daemons {
		busy(daemons[0])
		busy(daemons[1])
		if err := daemons[i].Stop(time.Minute); err != nil {
			t.Fatal(err)
		}
		daemons[i] = start(t, rules, envs[i])
		busy(daemons[i])
	}
	stop()
	workers.Wait()
	if len(failures) > 0 {
		t.Errorf("of %d requests failed: %v", sent.Load(), failures)
	}
	g.want(t, caller("127.0.0.1"), answer{200, limit, limit - int(sent.Load()) - 1}, "/login")
}

// frames is what passed between Envoy and a daemon, on all connections.
type frames struct {
	addr               string
	conns, pings, away atomic.Int64
}

// watchFrames relays connections to a daemon and reads along.
func watchFrames(t *testing.T, to string) *frames {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	f := &frames{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			f.conns.Add(1)
			go f.pass(server, client, int64(len(http2.ClientPreface)))
			go f.pass(client, server, 0)
		}
	}()
	return f
}

// pass copies one direction and counts PINGs that are no answers, and GOAWAYs.
func (f *frames) pass(to, from net.Conn, preface int64) {
	defer to.Close()
	seen, see := io.Pipe()
	go func() {
		defer seen.Close()
		if _, err := io.CopyN(io.Discard, seen, preface); err != nil {
			return
		}
		framer := http2.NewFramer(nil, seen)
		for {
			frame, err := framer.ReadFrame()
			if err != nil && !errors.As(err, new(http2.StreamError)) {
				return
			}
			switch frame := frame.(type) {
			case *http2.PingFrame:
				if preface > 0 && !frame.IsAck() {
					f.pings.Add(1)
				}
			case *http2.GoAwayFrame:
				if preface == 0 && frame.ErrCode == http2.ErrCodeEnhanceYourCalm {
					f.away.Add(1)
				}
			}
		}
	}()
	io.Copy(io.MultiWriter(to, see), from)
	see.Close()
}

// The example's keepalive is no more than a daemon bears: it sends no GOAWAY, where one that bears less does.
func TestEnvoy_keepalive(t *testing.T) {
	t.Parallel()
	envoyProgram(t)
	redis := testdb.Redis(t).URL()
	good := watchFrames(t, exampleDaemon(t, redis, nil).grpc)
	touchy := watchFrames(t, exampleDaemon(t, redis, map[string]string{"GRPC_KEEPALIVE_MIN_TIME": "5m"}).grpc)
	g := startEnvoy(t, []string{good.addr, touchy.addr}, patient, func(t *testing.T, config map[string]any) {
		delete(digMap(t, config, clusterPath...), "health_checks") // leaves the connections idle
	})
	c := caller("127.0.0.1")
	eventually(t, "a connection to each daemon", func() bool {
		g.answers(t, c, "/api/", "X-User: ann-"+strconv.FormatInt(time.Now().UnixNano(), 36))
		return good.conns.Load() == 1 && touchy.conns.Load() == 1
	})
	deadline := time.Now().Add(2 * time.Minute)
	for good.pings.Load() < 4 || touchy.away.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d pings; the touchy daemon has sent %d GOAWAYs", good.pings.Load(), touchy.away.Load())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if good.away.Load() != 0 || good.conns.Load() != 1 {
		t.Errorf("after %d pings: %d GOAWAYs, %d connections", good.pings.Load(), good.away.Load(), good.conns.Load())
	}
}

// What the example decides on purpose stays decided.
func TestEnvoy_example(t *testing.T) {
	config := exampleConfig(t)
	open, strict := limitFilters(t, config)
	cluster := digMap(t, config, clusterPath...)
	options := digMap(t, cluster, "typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
	keepalive := digMap(t, options, "explicit_http_config", "http2_protocol_options", "connection_keepalive")
	for name, is := range map[string]bool{
		"timeouts":          open["timeout"] == "0.1s" && strict["timeout"] == "0.5s",
		"failure_mode_deny": open["failure_mode_deny"] == false && strict["failure_mode_deny"] == true,
		"keepalive":         keepalive["interval"] == "5s",
	} {
		if !is {
			t.Errorf("%s: not as the README says", name)
		}
	}
}

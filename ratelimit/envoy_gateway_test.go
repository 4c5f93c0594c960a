package main

import (
	"encoding/json"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"gatehouse/shared/child"
)

// This file starts an Envoy with the configuration of example/ and asks it.

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

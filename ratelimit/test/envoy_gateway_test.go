package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/envoytest"
)

// This file starts an Envoy with the configuration of example/ and sends it requests.

// exampleConfig is envoy.yaml, its limits per year.
func exampleConfig(t *testing.T) envoytest.Config {
	t.Helper()
	return envoytest.Read(t, "example/envoy.yaml", "unit: MINUTE", "unit: YEAR")
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

// limitFilters are the two filters of the example that call the daemon: the one of stage 0, that of stage 1.
func limitFilters(t *testing.T, c envoytest.Config) (open, strict map[string]any) {
	t.Helper()
	return c.Filter(t, "envoy.filters.http.ratelimit"), c.Filter(t, "envoy.filters.http.ratelimit.strict")
}

// keepalive is how the example's Envoy looks for daemons that are gone.
func keepalive(t *testing.T, c envoytest.Config) map[string]any {
	t.Helper()
	options := envoytest.Map(t, c.Cluster(t, "ratelimit"), "typed_extension_protocol_options",
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
	return envoytest.Map(t, options, "explicit_http_config", "http2_protocol_options", "connection_keepalive")
}

// patient has Envoy wait for slow servers.
func patient(t *testing.T, c envoytest.Config) {
	open, strict := limitFilters(t, c)
	open["timeout"], strict["timeout"] = "30s", "30s"
	cluster := c.Cluster(t, "ratelimit")
	cluster["connect_timeout"] = "30s"
	envoytest.Map(t, cluster, "health_checks", 0)["timeout"] = "30s"
	keepalive(t, c)["timeout"] = "30s"
}

// gateway is one Envoy of a test, with its upstream.
type gateway struct {
	*envoytest.Envoy
	passed atomic.Int64 // requests that the upstream has got
}

// startEnvoy runs the example's Envoy in front of daemons, given by their gRPC addresses.
func startEnvoy(t *testing.T, daemons []string, changes ...func(*testing.T, envoytest.Config)) *gateway {
	t.Helper()
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
	config.Place(t, "ratelimit", daemons...)
	config.Place(t, "upstream", upstream.Listener.Addr().String())
	g.Envoy = envoytest.Start(t, config)
	return g
}

// answer is what a client gets: a status, and the daemon's headers, -1 where they are missing.
type answer struct{ status, limit, remaining int }

// caller is an HTTP client at an address of its own.
func caller(from string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16}}
}

// ask sends a GET with headers, "name: value" each.
func (g *gateway) ask(c *http.Client, path string, headers ...string) (answer, error) {
	req, err := http.NewRequest("GET", "http://"+g.Addr+path, nil)
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
		return got, fmt.Errorf("%s: %s with X-Envoy-Ratelimited %q", path, resp.Status,
			resp.Header.Get("X-Envoy-Ratelimited"))
	}
	return got, nil
}

// want sends one request and compares.
func (g *gateway) want(t *testing.T, c *http.Client, want answer, path string, headers ...string) {
	t.Helper()
	if got, err := g.ask(c, path, headers...); err != nil || got != want {
		t.Errorf("%s %q: %v %v, want %v", path, headers, got, err, want)
	}
}

// answers sends requests until the answer has the daemon's headers.
func (g *gateway) answers(t *testing.T, c *http.Client, path string, headers ...string) {
	t.Helper()
	await.True(t, path+" is limited", func() bool {
		got, err := g.ask(c, path, headers...)
		return err == nil && got.status == 200 && got.limit > 0
	})
}

// exampleDaemon is a daemon with the example's rules on a Redis.
func exampleDaemon(t *testing.T, redis string, more map[string]string) *process {
	t.Helper()
	env := map[string]string{"BACKEND_TYPE": "redis", "KVSTORE_URL": redis, "KVSTORE_TIMEOUT": "20s",
		"STORE_STALL":                    "20s",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true"}
	for name, value := range more {
		env[name] = value
	}
	return start(t, exampleRules(t), env)
}

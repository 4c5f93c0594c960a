package envoytest

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// Config is an Envoy's bootstrap configuration, decoded: maps, lists and scalars that a test may change.
type Config map[string]any

// Read decodes a YAML file. oldnew, pairs as for strings.NewReplacer, are first replaced in its text.
func Read(t testing.TB, file string, oldnew ...string) Config {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	if err := yaml.Unmarshal([]byte(strings.NewReplacer(oldnew...).Replace(string(text))), &c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return c
}

// Dig follows path in decoded YAML, by name into a map, by index into a list, and fails the test if there is nothing.
func Dig(t testing.TB, v any, path ...any) any {
	t.Helper()
	if c, ok := v.(Config); ok {
		v = map[string]any(c)
	}
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
			t.Fatalf("Envoy's configuration has nothing at %v", path[:i+1])
		}
	}
	return v
}

// Map is Dig for a map that the test changes.
func Map(t testing.TB, v any, path ...any) map[string]any {
	t.Helper()
	m, ok := Dig(t, v, path...).(map[string]any)
	if !ok {
		t.Fatalf("Envoy's configuration has no map at %v", path)
	}
	return m
}

// Manager returns the HTTP connection manager of the first listener.
func (c Config) Manager(t testing.TB) map[string]any {
	t.Helper()
	return Map(t, c, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
}

// Filter returns the configuration of the HTTP filter with that name.
func (c Config) Filter(t testing.TB, name string) map[string]any {
	t.Helper()
	return Map(t, named(t, Dig(t, c.Manager(t), "http_filters"), name), "typed_config")
}

// Cluster returns the cluster with that name.
func (c Config) Cluster(t testing.TB, name string) map[string]any {
	t.Helper()
	return named(t, Dig(t, c, "static_resources", "clusters"), name)
}

func named(t testing.TB, list any, name string) map[string]any {
	t.Helper()
	l, _ := list.([]any)
	for i := range l {
		if m := Map(t, l, i); m["name"] == name {
			return m
		}
	}
	t.Fatalf("Envoy's configuration has no %q", name)
	return nil
}

// Place gives a cluster the servers at addrs, host:port each.
func (c Config) Place(t testing.TB, cluster string, addrs ...string) {
	t.Helper()
	var endpoints []any
	for _, addr := range addrs {
		endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": address(t, addr)}})
	}
	Map(t, c.Cluster(t, cluster), "load_assignment", "endpoints", 0)["lb_endpoints"] = endpoints
}

// Endpoint returns the address of a cluster's first server.
func (c Config) Endpoint(t testing.TB, cluster string) (host string, port string) {
	t.Helper()
	at := Map(t, c.Cluster(t, cluster), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address",
		"socket_address")
	return fmt.Sprint(at["address"]), fmt.Sprint(at["port_value"])
}

// address returns a core.v3.Address.
func address(t testing.TB, addr string) map[string]any {
	t.Helper()
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

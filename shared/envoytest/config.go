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

// Config is the bootstrap configuration of an Envoy, decoded into maps, lists and scalars that a test may change.
type Config map[string]any

// Read decodes a YAML file. oldnew are pairs of texts: in the file's text, the first of each pair is replaced by the
// second before decoding.
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

// Dig returns the value at a path in decoded YAML. A string in path selects from a map, an int from a list. Dig fails
// the test if there is no such value.
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

// Map does what Dig does, for a value that is a map. The test may change the map.
func Map(t testing.TB, v any, path ...any) map[string]any {
	t.Helper()
	m, ok := Dig(t, v, path...).(map[string]any)
	if !ok {
		t.Fatalf("Envoy's configuration has no map at %v", path)
	}
	return m
}

// Manager returns the configuration of the HTTP connection manager in the first listener.
func (c Config) Manager(t testing.TB) map[string]any {
	t.Helper()
	return Map(t, c, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
}

// Filter returns the configuration of the HTTP filter with the given name.
func (c Config) Filter(t testing.TB, name string) map[string]any {
	t.Helper()
	return Map(t, named(t, Dig(t, c.Manager(t), "http_filters"), name), "typed_config")
}

// Cluster returns the configuration of the cluster with the given name.
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

// Place makes a cluster consist of the servers at addrs, each host:port.
func (c Config) Place(t testing.TB, cluster string, addrs ...string) {
	t.Helper()
	var endpoints []any
	for _, addr := range addrs {
		endpoints = append(endpoints, map[string]any{"endpoint": map[string]any{"address": address(t, addr)}})
	}
	Map(t, c.Cluster(t, cluster), "load_assignment", "endpoints", 0)["lb_endpoints"] = endpoints
}

// Endpoint returns the address of the first server in a cluster.
func (c Config) Endpoint(t testing.TB, cluster string) (host string, port string) {
	t.Helper()
	at := Map(t, c.Cluster(t, cluster), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address",
		"socket_address")
	return fmt.Sprint(at["address"]), fmt.Sprint(at["port_value"])
}

// address returns addr, host:port, as the configuration writes a core.v3.Address.
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

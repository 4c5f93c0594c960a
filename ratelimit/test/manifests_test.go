package test

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file starts the daemon with the environments that others write for the service it replaces, name by
// name. Only addresses and paths are those of the test.

// warnings are the daemon's so far, in order.
func (p *process) warnings() (all []string) {
	for line := range strings.Lines(p.log.text()) {
		var l struct {
			Level   string `json:"level"`
			Message string `json:"@message"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Level == "warning" {
			all = append(all, l.Message)
		}
	}
	return all
}

// The environment that Envoy Gateway gives its rate limit deployment. The mapping file is that of an
// optional ConfigMap, which is not there.
func TestManifest_envoyGateway(t *testing.T) {
	t.Parallel()
	l := newLock(t)
	plane := guarded(t, l, true, "127.0.0.1")
	redis := testdb.Private(t, localserver.RedisOptions{})
	missing := l.path("statsd-exporter/conf.yaml")
	p := start(t, "", map[string]string{
		"DISABLE_STATS": "", "BACKEND_TYPE": "", "STORE_STALL": "0", // which other tests set
		"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_APPDIRECTORY": "",
		"RUNTIME_IGNOREDOTFILES": "true", "RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false",
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": plane.Addr,
		"CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit-7b4d",
		"GRPC_SERVER_USE_TLS":     "true", "GRPC_SERVER_TLS_CERT": l.path("tls.crt"),
		"GRPC_SERVER_TLS_KEY": l.path("tls.key"), "GRPC_SERVER_TLS_CA_CERT": l.path("ca.crt"),
		"CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": l.path("tls.crt"),
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY": l.path("tls.key"), "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": l.path("ca.crt"),
		"FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
		"REDIS_SOCKET_TYPE":                  "tcp", "REDIS_URL": redis.Addr(),
		"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0", "PROMETHEUS_MAPPER_YAML": missing,
	})
	want := []string{
		"4 settings have old names, whose prefix alone changed: REDIS_SOCKET_TYPE is KVSTORE_SOCKET_TYPE now, " +
			"REDIS_URL is KVSTORE_URL now, " +
			"PROMETHEUS_ADDR is PULLMETRICS_ADDR now, …; ratelimit check -settings lists all",
		"USE_PROMETHEUS is an old name; it is called USE_PULLMETRICS now",
		"RUNTIME_IGNOREDOTFILES, RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_WATCH_ROOT have no effect with " +
			"CONFIG_TYPE=GRPC_XDS_SOTW",
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true without HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true: until the " +
			"first rules the daemon is healthy and every decision is UNAVAILABLE",
		"GRPC_SERVER_TLS_CA_CERT has no effect, as it has none in envoyproxy/ratelimit; GRPC_CLIENT_TLS_CACERT is " +
			"the file of roots that clients' certificates must lead to",
		"PROMETHEUS_MAPPER_YAML=\"" + missing +
			"\" does not exist: the default mapping is used; PULLMETRICS_MAPPER_YAML refuses the start instead",
	}
	if got := p.warnings(); len(got) < len(want) {
		t.Errorf("warnings %q", got)
	} else if d := cmp.Diff(want, got[:len(want)]); d != "" { // the following lines say how long the rules take
		t.Error(d)
	}
	if code, _ := get(t, p.http+"/healthcheck"); code != 200 { // the probes of startup and readiness
		t.Errorf("/healthcheck %d", code)
	}
	await.True(t, "a decision by the control plane's rules", func() bool {
		got, err := ask(p.grpc, &tls.Config{RootCAs: l.ca.Pool()})
		return err == nil && got.Statuses[0].CurrentLimit.GetRequestsPerUnit() == 3
	})
	if plane.Request(0).Node.GetId() != "envoy-ratelimit-7b4d" {
		t.Errorf("node %v", plane.Request(0).Node)
	}
	if n := stored(t, []*localserver.Server{redis}, "d_k_v_"); n == 0 {
		t.Error("the store holds no hit")
	}
	var ready struct{ PullMetrics string }
	p.log.await(t, `"ready"`, &ready)
	if _, page := get(t, ready.PullMetrics+"/metrics"); !strings.Contains(page,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="k"`) {
		t.Errorf("/metrics lacks the default mapping:\n%.500s", page)
	}
}

// The environment of Istio's sample, its ConfigMap mounted as Kubernetes does.
func TestManifest_istio(t *testing.T) {
	t.Parallel()
	redis := testdb.Private(t, localserver.RedisOptions{})
	root := t.TempDir()
	config := filepath.Join(root, "ratelimit", "config")
	must.Succeed(t, os.MkdirAll(filepath.Join(config, "..2026_11"), 0o755))
	const rules = "domain: d\ndescriptors:\n  - key: k\n    value: v\n    rate_limit:\n      unit: year\n" +
		"      requests_per_unit: 1\n"
	must.Succeed(t, os.WriteFile(filepath.Join(config, "..2026_11", "config.yaml"), []byte(rules), 0o644))
	for link, to := range map[string]string{"..data": "..2026_11", "config.yaml": "..data/config.yaml"} {
		must.Succeed(t, os.Symlink(to, filepath.Join(config, link)))
	}
	env := map[string]string{
		"DISABLE_STATS": "", "BACKEND_TYPE": "", "STORE_STALL": "0",
		"RUNTIME_APPDIRECTORY": "", // which other tests set
		"LOG_LEVEL":            "debug", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": redis.Addr(), "USE_STATSD": "false",
		"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_WATCH_ROOT": "false",
		"RUNTIME_IGNOREDOTFILES": "true", "HOST": "::", "GRPC_HOST": "::",
	}
	if l, err := net.Listen("tcp", "[::]:0"); err != nil { // a machine without IPv6
		env["HOST"], env["GRPC_HOST"] = "0.0.0.0", "0.0.0.0"
	} else {
		l.Close()
	}
	p := start(t, "", env)
	want := []string{"2 settings have old names, whose prefix alone changed: REDIS_SOCKET_TYPE is " +
		"KVSTORE_SOCKET_TYPE now, REDIS_URL is KVSTORE_URL now"}
	if got := p.warnings(); !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	c := p.dial(t)
	for i, want := range []string{"OK", "OVER_LIMIT"} {
		if got := decide1(t, c, "k", "v"); got.OverallCode.String() != want {
			t.Errorf("hit %d: %v, want %s", i, got.OverallCode, want)
		}
	}
	if n := stored(t, []*localserver.Server{redis}, "d_k_v_"); n != 2 {
		t.Errorf("the store holds %d hits, want 2", n)
	}
}

// check lists the old names that the log of a start sums up.
func TestCheck_oldNames(t *testing.T) {
	t.Parallel()
	out, err := command(map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "REDIS_SOCKET_TYPE": "tcp",
		"REDIS_URL":       "h:1",
		"REDIS_POOL_SIZE": "3", "REDIS_TIMEOUT": "1s"}, "check", "-settings").CombinedOutput()
	must.Succeed(t, err)
	for _, name := range []string{"SOCKET_TYPE", "URL", "POOL_SIZE", "TIMEOUT"} {
		if line := "warning: REDIS_" + name + " is an old name; it is called KVSTORE_" +
			name + " now\n"; !strings.Contains(string(out), line) {
			t.Errorf("no %q in:\n%s", line, out)
		}
	}
	if strings.Contains(string(out), "lists all") {
		t.Errorf("a summary in:\n%s", out)
	}
}

package test

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/shared/await"
	"gatehouse/shared/imagetest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file runs the image: its root in a sandbox, with the command lines, environments, users and ports that the
// manifests of others have for the service it replaces.

// What manifests and compose files name as program.
func TestImage_commandLines(t *testing.T) {
	t.Parallel()
	imagetest.Need(t)
	image := imagetest.New(t, "ratelimit")
	if image.User != "65532:65532" || image.Entrypoint != nil {
		t.Errorf("user %q, entrypoint %q", image.User, image.Entrypoint)
	}
	daemon := imagetest.Container{Image: image, Argv: image.Argv(nil, nil), UID: 65532,
		Env: map[string]string{"BACKEND_TYPE": "memory", "DISABLE_STATS": "true", "RUNTIME_ROOT": "/rules", "LOG_FORMAT": "json",
			"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"}, Mounts: map[string]string{"/rules": imagetest.Folder(t)}}.Start(t)
	await.True(t, "the debug port answers", func() bool { status, _ := daemon.Get("http://127.0.0.1:6070/"); return status == 200 })
	f := func(first, rest []string, status int, want string) {
		t.Helper()
		argv := image.Argv(first, rest)
		if got, out := daemon.Exec(t, argv...); got != status || !strings.Contains(out, want) {
			t.Errorf("%q: %d %s; want %d and %q", argv, got, out, status, want)
		}
	}
	if got := image.Argv(nil, nil); !slices.Equal(got, []string{"/bin/ratelimit"}) {
		t.Errorf("without a command the image runs %q", got)
	}
	f([]string{"/bin/ratelimit"}, []string{"version"}, 0, "ratelimit ") // command: of Envoy Gateway and Istio
	f(nil, []string{"/bin/ratelimit", "version"}, 0, "ratelimit ")      // command: of a compose file
	f(nil, []string{"ratelimit", "version"}, 0, "ratelimit ")
	f(nil, []string{"/bin/ratelimit_config_check", "-config_dir", "/rules"}, 0, "all rate limit configs ok")
	f([]string{"/bin/ratelimit_client"}, []string{"-h"}, 0, "dial_string")
	f([]string{"ratelimit", "health"}, nil, 1, "http://localhost:8080/healthcheck: 500 Internal Server Error") // no rules yet
	f([]string{"ratelimit", "health"}, []string{"http://localhost:6070/"}, 0, "")
	f([]string{"ratelimit", "health"}, []string{"-timeout", "5s", "http://127.0.0.1:6070/nothing"}, 1, ": 404 Not Found")
	f([]string{"ratelimit", "health"}, []string{"http://redis:6379/"}, 2, "not a page of this host")
	f([]string{"ratelimit", "health"}, []string{"-timeout", "0s"}, 2, "usage:")
	f([]string{"ratelimit", "health"}, []string{"a", "b"}, 2, "usage:")
	must.Succeed(t, daemon.Stop(time.Minute))
}

// The root as it is laid out: modes, links and what a registry has to hold of it.
func TestImage_root(t *testing.T) {
	t.Parallel()
	root := imagetest.New(t, "ratelimit").Root
	imagetest.WantRoot(t, root, map[string]string{"bin/ratelimit": "-rwxr-xr-x", "bin/ratelimit_client": "ratelimit",
		"bin/ratelimit_config_check": "ratelimit"}, "ratelimit")
	if size := imagetest.Compressed(t, root); size > 8_500_000 {
		t.Errorf("%d bytes compressed, want at most 8.5 MB", size)
	}
}

// mountConfig is a folder with files in the layout of a ConfigMap's or a secret's volume.
func mountConfig(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := imagetest.Folder(t)
	imagetest.Swap(t, dir, files)
	return dir
}

// dialImage is a client of a container's gRPC port, in clear without credentials.
func dialImage(t *testing.T, c *imagetest.Running, with credentials.TransportCredentials) pb.RateLimitServiceClient {
	t.Helper()
	if with == nil {
		with = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///127.0.0.1:8081", grpc.WithTransportCredentials(with),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return c.Dial(ctx, "tcp", address) }))
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	return pb.NewRateLimitServiceClient(conn)
}

const perYear1 = "domain: d\ndescriptors: [{key: k, value: v, rate_limit: {unit: year, requests_per_unit: 1}}]\n"

// Istio's sample: its ConfigMap, environment and ports, with both users that manifests set.
func TestImage_istio(t *testing.T) {
	t.Parallel()
	imagetest.Need(t)
	for _, uid := range []int{65532, 65534} {
		redis := testdb.Private(t, localserver.RedisOptions{})
		image := imagetest.New(t, "ratelimit")
		config := mountConfig(t, map[string]string{"config.yaml": perYear1})
		before := imagetest.Snapshot(t, image.Root, config)
		c := imagetest.Container{Image: image, Argv: image.Argv([]string{"/bin/ratelimit"}, nil), UID: uid,
			Env: map[string]string{"LOG_LEVEL": "debug", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "redis:6379",
				"USE_STATSD": "false", "RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit",
				"RUNTIME_WATCH_ROOT": "false", "RUNTIME_IGNOREDOTFILES": "true", "HOST": "::", "GRPC_HOST": "::"},
			Mounts: map[string]string{"/data/ratelimit/config": config},
			Hosts:  map[string]string{"redis:6379": redis.Addr()},
		}.Start(t)
		healthyAt(t, c, "http://127.0.0.1:8080/healthcheck")
		documented(t, c)
		service := dialImage(t, c, nil)
		for i, want := range []string{"OK", "OVER_LIMIT"} {
			if got := decide1(t, service, "k", "v"); got.OverallCode.String() != want {
				t.Errorf("hit %d: %v, want %s", i, got.OverallCode, want)
			}
		}
		if status, _ := c.Get("http://[::1]:6070/"); status != 200 {
			t.Errorf("the debug port: %d", status)
		}
		if err := c.Stop(time.Minute); err != nil {
			t.Errorf("user %d: stopping: %v", uid, err)
		}
		if after := imagetest.Snapshot(t, image.Root, config); after != before {
			t.Errorf("files changed:\n%s\n%s", before, after)
		}
	}
}

// healthyAt waits for an answer of 200.
func healthyAt(t *testing.T, c *imagetest.Running, url string) {
	t.Helper()
	var status int
	var body string
	await.True(t, url, func() bool { status, body = c.Get(url); return status == 200 },
		func() string { return body + "\n" + c.Log.String() })
}

// documented wants each warning of a start in docs/deploy.md.
func documented(t *testing.T, c *imagetest.Running) {
	t.Helper()
	page := strings.Join(strings.Fields(doctest.Document(t, "docs/deploy.md")), " ")
	for line := range strings.Lines(c.Log.String()) {
		_, quoted, warning := strings.Cut(strings.TrimSpace(line), " level=warning msg=")
		if strings.Contains(line, "level=info") {
			break // it begins
		}
		if text, err := strconv.Unquote(quoted); warning && (err != nil || !strings.Contains(page, "- "+text)) {
			t.Errorf("docs/deploy.md does not list the warning\n%s", quoted)
		}
	}
}

// Envoy Gateway's Deployment: command, environment with xDS and TLS, user, the mounted certificates, the optional
// ConfigMap missing. Once started, no probe fails while the control plane is away or Redis starts again.
func TestImage_envoyGateway(t *testing.T) {
	t.Parallel()
	imagetest.Need(t)
	l := newLock(t)
	plane := guarded(t, l, true, "envoy-gateway")
	redis := testdb.Private(t, localserver.RedisOptions{})
	files := map[string]string{}
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		text, err := os.ReadFile(l.path(name))
		must.Succeed(t, err)
		files[name] = string(text)
	}
	image := imagetest.New(t, "ratelimit")
	c := imagetest.Container{Image: image, Argv: image.Argv([]string{"/bin/ratelimit"}, nil), UID: 65534,
		Env: map[string]string{
			"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true",
			"RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false", "CONFIG_TYPE": "GRPC_XDS_SOTW",
			"CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit-7b4d",
			"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "/certs/tls.crt", "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
			"GRPC_SERVER_TLS_CA_CERT": "/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT":  "/certs/ca.crt",
			"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "redis:6379",
			"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":19001", "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
		},
		Mounts: map[string]string{"/certs": mountConfig(t, files)},
		Hosts:  map[string]string{"redis:6379": redis.Addr(), "envoy-gateway:18001": plane.Addr},
	}.Start(t)
	healthyAt(t, c, "http://127.0.0.1:8080/healthcheck")
	documented(t, c)
	with := credentials.NewTLS(l.client(nil))
	await.True(t, "a decision by the control plane's rules", func() bool {
		got, err := dialImage(t, c, with).ShouldRateLimit(t.Context(), request("k", "v"))
		return err == nil && got.Statuses[0].CurrentLimit.GetRequestsPerUnit() == 3
	})
	if _, page := c.Get("http://127.0.0.1:19001/metrics"); !strings.Contains(page, "ratelimit_service_rate_limit_total_hits") {
		t.Errorf("/metrics:\n%.300s", page)
	}
	probe := imagetest.Probe{URL: "http://127.0.0.1:8080/healthcheck", Timeout: time.Second, Period: 100 * time.Millisecond}
	failures := probe.Watch(t, c)
	c.Forwards["envoy-gateway:18001"].Down()
	c.Await(t, "control plane")
	c.Forwards["redis:6379"].Down()
	service := dialImage(t, c, with)
	await.True(t, "the store is missed", func() bool {
		_, err := service.ShouldRateLimit(t.Context(), request("k", "v"))
		return err != nil
	})
	_, before := failures.State()
	await.True(t, "ten more probes", func() bool { _, n := failures.State(); return n >= before+10 })
	must.Succeed(t, c.Forwards["redis:6379"].Up())
	await.True(t, "the store counts again", func() bool {
		_, err := service.ShouldRateLimit(t.Context(), request("k", "v"))
		return err == nil
	})
	must.Succeed(t, failures.Stop())
	must.Succeed(t, c.Stop(time.Minute))
}

package test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/shared/await"
	"gatehouse/shared/envoytest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// The three files envoy*_test.go run example/: its envoy.yaml in a real Envoy, its rules in a real daemon, HTTP from a
// client through Envoy to an upstream. Only addresses change, time-outs (a starved machine is not a dead daemon) and
// units: a minute becomes a year, so that no window ends under a test.

// What each route of the example answers, and how it got its descriptor.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Valid(t, "example/envoy.yaml")
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
		// A client cannot choose its address by x-forwarded-for.
		g.want(t, here, answer{429, 3, 0}, "/login", "X-Forwarded-For: 192.0.2.1")
		// Nor does another spelling of the path, which the upstream may take for the same; what has an escaped
		// slash in it is refused.
		for _, path := range []string{"//login", "/./login", "/api/../login", "/%6Cogin", "/x/%2e%2e/login"} {
			g.want(t, here, answer{429, 3, 0}, path)
		}
		for _, path := range []string{"/%2Flogin", "/api%2f..%2flogin", "/x%5C..%5Clogin"} {
			g.want(t, here, answer{400, -1, -1}, path)
		}
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

// A byte that is no UTF-8 takes no request past its limit, nor past that of another descriptor, whether or not the
// answer repeats the request.
func TestEnvoy_bytes(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	for _, metadata := range []string{"false", "true"} {
		p := exampleDaemon(t, testdb.Redis(t).URL(), map[string]string{"RESPONSE_DYNAMIC_METADATA": metadata})
		g := startEnvoy(t, []string{p.grpc}, patient)
		c := caller("127.0.0.1")
		for left := 9; left >= 0; left-- {
			g.want(t, c, answer{200, 10, left}, "/api/x", "X-User: bad\xffagent")
		}
		for range 4 {
			g.want(t, c, answer{429, 10, 0}, "/api/x", "X-User: bad\xffagent")
		}
		g.want(t, c, answer{200, 10, 9}, "/api/x", "X-User: bad\xfeagent")
		if got := stat(t, p, "ratelimit.service.call.should_rate_limit.refused_malformed"); got != 0 {
			t.Errorf("%d requests were refused", got)
		}
		if status, page := get(t, p.debug+"/metrics"); status == 200 && !utf8.ValidString(page) {
			t.Error("the page of metrics is no UTF-8")
		}
	}
}

// Without a decision /api passes and /login does not, whether Redis or the daemon is gone, says nothing, or refuses
// the request.
func TestEnvoy_failure(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
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
	must.Succeed(t, redis.Restart(context.Background()))
	g.answers(t, c, "/api/", "X-User: bob")

	p.freeze(t)
	undecided(t, hasty)
	must.Succeed(t, p.Signal(syscall.SIGCONT))
	g.answers(t, c, "/api/", "X-User: cid")

	must.Succeed(t, p.Signal(syscall.SIGKILL))
	<-p.Ended()
	undecided(t, g)
	exampleDaemon(t, redis.Addr(), env)
	g.answers(t, c, "/api/", "X-User: dan")
}

// Two daemons are restarted one after the other under load: no request fails, and none is counted twice.
func TestEnvoy_restart(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	const limit = 100_000_000
	rules := strings.Replace(exampleRules(t), "requests_per_unit: 3}", fmt.Sprintf("requests_per_unit: %d}", limit), 1)
	redis := testdb.Redis(t).URL()
	var daemons [2]*process
	var envs [2]map[string]string
	for i, host := range []string{"127.0.0.6", "127.0.0.7"} {
		envs[i] = map[string]string{
			"BACKEND_TYPE": "redis", "KVSTORE_URL": redis, "KVSTORE_TIMEOUT": "20s", "STORE_STALL": "20s",
			"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "GRPC_HOST": host, "GRPC_PORT": freePort(t, host),
			"DRAIN_DELAY": "2s",
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
		await.True(t, "both daemons are asked", func() bool {
			return stat(t, p, "ratelimit_server.ShouldRateLimit.total_requests") > 20
		})
	}
	for i := range daemons {
		busy(daemons[0])
		busy(daemons[1])
		must.Succeed(t, daemons[i].Stop(time.Minute))
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

// What the example decides on purpose stays decided.
func TestEnvoy_example(t *testing.T) {
	config := exampleConfig(t)
	open, strict := limitFilters(t, config)
	for name, is := range map[string]bool{
		"timeouts":          open["timeout"] == "0.1s" && strict["timeout"] == "0.5s",
		"failure_mode_deny": open["failure_mode_deny"] == false && strict["failure_mode_deny"] == true,
		"keepalive":         keepalive(t, config)["interval"] == "5s",
	} {
		if !is {
			t.Errorf("%s: not as the README says", name)
		}
	}
}

// The compose file sets what the daemon knows, and gives Envoy the names and ports that it looks for.
func TestEnvoy_compose(t *testing.T) {
	compose := envoytest.ReadCompose(t, "example/compose.yaml")
	daemon := compose.Services["ratelimit"]
	c, report, _ := config.Load(daemon.Environ())
	if len(report.Warnings)+len(report.Mistakes) > 0 {
		t.Errorf("warnings %q, mistakes %q", report.Warnings, report.Mistakes)
	}
	if daemon.Deploy.Replicas < 2 {
		t.Errorf("%d daemons: one after the other can't be restarted", daemon.Deploy.Replicas)
	}
	if grace, err := time.ParseDuration(daemon.StopGrace); err != nil || grace < c.Process.DrainDelay+
		c.Process.DrainTimeout+3*time.Second {
		t.Errorf("stop_grace_period is %s, DRAIN_DELAY %s, DRAIN_TIMEOUT %s", daemon.StopGrace, c.Process.DrainDelay,
			c.Process.DrainTimeout)
	}
	config := exampleConfig(t)
	if every, err := time.ParseDuration(fmt.Sprint(envoytest.Map(t, config.Cluster(t, "ratelimit"), "health_checks",
		0)["interval"])); err != nil || c.Process.DrainDelay < 3*every {
		t.Errorf("Envoy asks for health each %s, DRAIN_DELAY is %s", every, c.Process.DrainDelay)
	}
	for name, want := range map[string]int{"ratelimit": c.Listen.GRPCPort, "upstream": 80} {
		host, port := config.Endpoint(t, name)
		if _, ok := compose.Services[host]; !ok {
			t.Errorf("no service %q", host)
		}
		if port != strconv.Itoa(want) {
			t.Errorf("%s: port %s, want %d", host, port, want)
		}
	}
	if daemon.Image != "gatehouse/ratelimit" {
		t.Error("the daemon's image is not the one that make image builds")
	}
	if _, err := loadRules(doctest.Block{Text: exampleRules(t)}); err != nil {
		t.Errorf("shop.yaml: %v", err)
	}
}

package test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/config"
	"gatehouse/shared/await"
	"gatehouse/shared/envoytest"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// This file runs example/: its envoy.yaml in a real Envoy, in front of real daemons of both kinds and an
// application. Only addresses change, time-outs (a starved machine is not a dead daemon) and a minute, which
// becomes a year, so that no window ends under a test.

// publicURL is where the example's users find the auth daemon, and the issuer of its tokens.
const publicURL = "http://localhost:10000/auth/v1"

// site is the example's Envoy with what stands behind it.
type site struct {
	*envoytest.Envoy
	reached atomic.Int64 // requests that the application has got
}

// startSite runs Envoy in front of auth daemons, given by host:port, and a rate limit daemon, "" for none. The
// application answers with the headers that identify the user.
func startSite(t *testing.T, ratelimit string, daemons ...string) *site {
	t.Helper()
	s := new(site)
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.reached.Add(1)
		// Many read X_User as X-User, as CGI has them both in one variable.
		fmt.Fprintf(w, "user %q role %q aal %q", append(r.Header["X-User"], r.Header["X_user"]...),
			r.Header["X-User-Role"], r.Header["X-User-Aal"])
	}))
	t.Cleanup(application.Close)

	config := envoytest.Read(t, "../example/envoy.yaml")
	config.Filter(t, "envoy.filters.http.ratelimit")["timeout"] = "30s"
	for _, name := range []string{"auth", "ratelimit"} {
		config.Cluster(t, name)["connect_timeout"] = "30s"
	}
	envoytest.Map(t, config.Cluster(t, "auth"), "health_checks", 0)["timeout"] = "30s"
	tokens := envoytest.Map(t, config.Filter(t, "envoy.filters.http.jwt_authn"), "providers", "auth", "remote_jwks")
	envoytest.Map(t, tokens, "http_uri")["timeout"] = "30s"
	config.Place(t, "auth", daemons...)
	if ratelimit == "" {
		ratelimit = "127.0.0.1:1" // unreachable; the limit fails open
	}
	config.Place(t, "ratelimit", ratelimit)
	config.Place(t, "application", application.Listener.Addr().String())
	s.Envoy = envoytest.Start(t, config)
	return s
}

// behindEnvoy is what a daemon of a test needs behind it.
func behindEnvoy(database string, more ...string) []string {
	return environment(database, append([]string{"AUTH_API_EXTERNAL_URL=" + publicURL, "AUTH_TRUSTED_PROXIES=127.0.0.1",
		"AUTH_REQUEST_ID_HEADER=X-Request-Id"}, more...)...)
}

// ratelimitDaemon runs the other daemon with the example's rules and returns its gRPC address.
func ratelimitDaemon(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "ratelimit")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-o", program,
		"gatehouse/ratelimit") // as make build does, so that all is cached
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build ratelimit: %v\n%s", err, out)
	}
	rules, err := os.ReadFile("../example/config/site.yaml")
	must.Succeed(t, err)
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "config"), 0o755))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "config", "site.yaml"),
		[]byte(strings.ReplaceAll(string(rules), "unit: minute", "unit: year")), 0o644))
	log := newLines()
	cmd := exec.Command(program)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{
		"RUNTIME_ROOT=" + dir, "RUNTIME_WATCH_ROOT=false", "BACKEND_TYPE=memory", "DISABLE_STATS=true",
		"LOG_LEVEL=info", "LOG_FORMAT=json",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"LIMIT_RESPONSE_HEADERS_ENABLED=true",
	}
	p, err := subprocess.Start(cmd)
	must.Succeed(t, err)
	t.Cleanup(func() { p.Stop(time.Minute) })
	log.ended = p.Ended()
	var ready struct{ GRPC string }
	log.await(t, `"ready"`, &ready)
	return ready.GRPC
}

// from returns a client with that local address. It follows no redirect.
func from(t *testing.T, ip string) *caller {
	c := newCaller(t, time.Minute)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c.Transport.(*http.Transport).DialContext = dialer.DialContext
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// ask sends a request with a bearer and headers, "name: value" each; body makes it a POST.
func (s *site) ask(c *caller, path, bearer, body string, headers ...string) (reply, error) {
	method := "GET"
	if body != "" {
		method = "POST"
	}
	return c.do(method, "http://"+s.Addr+path, bearer, body, headers...)
}

// want sends a request, and fails the test when the status is another.
func (s *site) want(t *testing.T, status int, c *caller, path, bearer, body string, headers ...string) reply {
	t.Helper()
	a, err := s.ask(c, path, bearer, body, headers...)
	if err != nil || a.status != status {
		t.Fatalf("%s: %v, %d %s; want %d", path, err, a.status, a.text, status)
	}
	return a
}

// A user signs up through Envoy, follows the link in the mail, and is known to the application; no other is.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Valid(t, "../example/envoy.yaml")
	d := start(t, behindEnvoy(testdb.Postgres(t)))
	s := startSite(t, ratelimitDaemon(t), strings.TrimPrefix(d.http, "http://"))
	here, there := from(t, "127.0.0.1"), from(t, "127.0.0.9")

	s.want(t, 200, there, "/auth/v1/signup", "", `{"email":"ann@example.org","password":"correct horse"}`)
	link, _ := d.mail(t, "ann@example.org")
	back := s.want(t, 303, there, "/auth/v1"+strings.TrimPrefix(link, publicURL), "", "")
	target, err := url.Parse(back.header.Get("Location"))
	must.Succeed(t, err)
	session, err := url.ParseQuery(target.Fragment)
	if err != nil || session.Get("access_token") == "" {
		t.Fatalf("%v: %s leads to %s", err, link, target)
	}
	token := session.Get("access_token")
	var claims struct{ Sub, Iss string }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Iss != publicURL {
		t.Errorf("%v: %s", err, payload)
	}

	t.Run("the application knows who asks", func(t *testing.T) {
		want := fmt.Sprintf(`user [%q] role ["authenticated"] aal ["aal1"]`, claims.Sub)
		if got := s.want(t, 200, here, "/api/x", token, "", "X-User: eve", "X_User: eve",
			"X-User-Role: service_role"); got.text != want {
			t.Errorf("%s, want %s", got.text, want)
		}
		if got := s.want(t, 200, here, "/", "", "", "X-User: eve", "X_User: eve",
			"X-User-Aal: aal2"); got.text != "user [] role [] aal []" {
			t.Errorf("without a token: %s", got.text)
		}
		// A browser's preflight passes without a token, and has no user.
		first, err := here.do("OPTIONS", "http://"+s.Addr+"/api/x", "", "", "Origin: http://localhost:3000",
			"Access-Control-Request-Method: GET", "X-User: eve", "X-User-Role: service_role")
		if err != nil || first.status != 200 || first.text != "user [] role [] aal []" {
			t.Errorf("a preflight: %v, %d %s", err, first.status, first.text)
		}
	})
	t.Run("nobody else gets in", func(t *testing.T) {
		_, out, _ := command(t, d.env, "", "keys", "service")
		service := strings.TrimSpace(out)
		foreign := start(t, environment(testdb.Postgres(t), "AUTH_API_EXTERNAL_URL="+publicURL)) // another key
		reached := s.reached.Load()
		for name, bearer := range map[string]string{
			"no token": "", "service": service, "foreign key": foreign.signUp(t, "ann@example.org").str("access_token"),
			"broken": token[:len(token)-4] + "AAAA",
		} {
			for _, path := range []string{"/api/x", "//api/x", "/auth/v1/../../api/x", "/x/%2e%2e/api/x"} {
				a, err := s.ask(here, path, bearer, "")
				if err != nil || a.status != 401 && a.status != 403 && a.status != 400 {
					t.Errorf("%s at %s: %v, %d %s", name, path, err, a.status, a.text)
				}
			}
		}
		if s.reached.Load() != reached {
			t.Error("a request without a user's token reached the application")
		}
		for _, path := range []string{"/auth/v1/admin/users", "/auth/v1//admin/users", "/auth/v1/x/../admin/users",
			"/auth/v1/invite"} {
			s.want(t, 404, here, path, service, "")
		}
	})
	t.Run("the daemon sees clients, not Envoy", func(t *testing.T) {
		var sessions []struct{ IP string }
		a := s.want(t, 200, here, "/auth/v1/user/sessions", token, "", "X-Forwarded-For: 192.0.2.1")
		if err := json.Unmarshal([]byte(a.text), &sessions); err != nil || len(sessions) != 1 ||
			sessions[0].IP != "127.0.0.9" {
			t.Errorf("%v: %s", err, a.text)
		}
		id := a.header.Get("X-Request-Id")
		if id == "" {
			t.Fatal("the answer has no id")
		}
		d.log.await(t, `"request_id":"`+id+`"`, nil) // Envoy's; a request is logged after its answer
	})
	t.Run("limits", func(t *testing.T) {
		for i := range 10 {
			s.want(t, 400, here, "/auth/v1/token?grant_type=password", "",
				fmt.Sprintf(`{"email":"eve%d@example.org","password":"wrong horse"}`, i))
		}
		s.want(t, 429, here, "/auth/v1/token?grant_type=password", "",
			`{"email":"ann@example.org","password":"correct horse"}`)
		for _, spelled := range []string{"?grant_type=passwor%64", "/?grant_type=password", "?grant%5Ftype=password",
			"?grant%5Ftype=password&grant_type=refresh_token"} {
			s.want(t, 429, here, "/auth/v1/token"+spelled, "", `{"email":"ann@example.org","password":"correct horse"}`)
		}
		again := s.want(t, 200, there, "/auth/v1/token?grant_type=password", "",
			`{"email":"ann@example.org","password":"correct horse"}`)
		s.want(t, 200, here, "/auth/v1/token?grant_type=refresh_token", "",
			`{"refresh_token":"`+again.str("refresh_token")+`"}`)
		for left := 28; left >= 0; left-- { // one was sent above; by another session of the same user
			a := s.want(t, 200, there, "/api/x", again.str("access_token"), "")
			if got := a.header.Get("RateLimit-Remaining"); got != fmt.Sprint(left) {
				t.Fatalf("%s left, want %d", got, left)
			}
		}
		s.want(t, 429, here, "/api/x", token, "")
	})
}

// Two daemons are restarted one after the other while users come and go: no request fails.
func TestEnvoy_restart(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	database := testdb.Postgres(t)
	var daemons [2]*instance
	var envs [2][]string
	for i, host := range []string{"127.0.0.1", "127.0.0.2"} {
		envs[i] = behindEnvoy(database, "AUTH_API_HOST="+host, "AUTH_DRAIN_DELAY=4s",
			"AUTH_RATE_LIMIT_REFRESH_PER_SESSION=0", "AUTH_DB_MAX_POOL_SIZE=8")
		daemons[i] = start(t, envs[i])
		envs[i] = append(envs[i], "PORT="+daemons[i].http[strings.LastIndexByte(daemons[i].http, ':')+1:])
	}
	s := startSite(t, "", strings.TrimPrefix(daemons[0].http, "http://"),
		strings.TrimPrefix(daemons[1].http, "http://"))

	stop := make(chan struct{})
	var workers sync.WaitGroup
	var sent atomic.Int64
	var mu sync.Mutex
	failures := map[string]int{}
	for i := range 4 {
		session := daemons[0].signUp(t, fmt.Sprintf("user%d@example.org", i))
		access, refresh := session.str("access_token"), session.str("refresh_token")
		c := from(t, "127.0.0.1")
		check := func(a reply, err error) reply {
			sent.Add(1)
			if err != nil || a.status != 200 {
				mu.Lock()
				defer mu.Unlock()
				failures[fmt.Sprint(err, a.status, a.text)]++
			}
			return a
		}
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond): // others need the machine too
				}
				check(s.ask(c, "/auth/v1/user", access, ""))
				check(s.ask(c, "/api/x", access, ""))
				if next := check(s.ask(c, "/auth/v1/token?grant_type=refresh_token", "",
					`{"refresh_token":"`+refresh+`"}`)); next.status == 200 {
					access, refresh = next.str("access_token"), next.str("refresh_token")
				}
			}
		})
	}
	end := sync.OnceFunc(func() { close(stop); workers.Wait() })
	defer end()
	busy := func(d *instance) {
		t.Helper()
		// Either route: taking turns, one daemon may get each GET /user and the other each refresh.
		await.True(t, "both daemons are asked", func() bool {
			return strings.Count(d.log.text(), `"route":"/user"`)+strings.Count(d.log.text(), `"route":"/token"`) > 20
		})
	}
	for i := range daemons {
		busy(daemons[0])
		busy(daemons[1])
		must.Succeed(t, daemons[i].Stop(time.Minute))
		daemons[i] = start(t, envs[i])
		busy(daemons[i])
	}
	end()
	if len(failures) > 0 {
		t.Errorf("of %d requests failed: %v", sent.Load(), failures)
	}
}

// The compose file sets what the daemons know, and gives Envoy the names and ports that it looks for.
func TestEnvoy_compose(t *testing.T) {
	compose := envoytest.ReadCompose(t, "../example/compose.yaml",
		"${JWT_SECRET:?openssl rand -hex 32}", strings.Repeat("a", 64), "${SECRET_KEY:?openssl rand -hex 32}",
		strings.Repeat("b", 64))
	daemon := compose.Services["auth"]
	c, _, _, report, err := config.Load(daemon.Environ(), os.DevNull, nil)
	if err != nil || len(report.Warnings) > 0 {
		t.Errorf("warnings %q, mistakes %v", report.Warnings, err)
	}
	if at := compose.Services["envoy"].Networks["default"].Address; !slices.Equal(c.API.Proxies, []string{at}) {
		t.Errorf("Envoy is at %s, AUTH_TRUSTED_PROXIES is %q", at, c.API.Proxies)
	}
	if grace, err := time.ParseDuration(daemon.StopGrace); err != nil || grace < c.API.DrainDelay+
		c.API.DrainTimeout+3*time.Second {
		t.Errorf("stop_grace_period is %s, AUTH_DRAIN_DELAY %s, AUTH_DRAIN_TIMEOUT %s", daemon.StopGrace,
			c.API.DrainDelay, c.API.DrainTimeout)
	}
	envoy := envoytest.Read(t, "../example/envoy.yaml")
	every, err := time.ParseDuration(fmt.Sprint(envoytest.Map(t, envoy.Cluster(t, "auth"), "health_checks",
		0)["interval"]))
	if err != nil || c.API.DrainDelay < 3*every || daemon.Deploy.Replicas < 2 {
		t.Errorf("%v: Envoy asks for health each %s, AUTH_DRAIN_DELAY is %s, of %d daemons", err, every,
			c.API.DrainDelay, daemon.Deploy.Replicas)
	}
	if issuer := envoytest.Map(t, envoy.Filter(t, "envoy.filters.http.jwt_authn"), "providers",
		"auth")["issuer"]; issuer != c.JWT.Issuer || issuer != publicURL {
		t.Errorf("Envoy wants the issuer %s, the daemon is %s", issuer, c.JWT.Issuer)
	}
	for name, want := range map[string]int{"auth": c.API.Port, "ratelimit": 8081, "application": 80} {
		host, port := envoy.Endpoint(t, name)
		if _, ok := compose.Services[host]; !ok || port != fmt.Sprint(want) {
			t.Errorf("%s: no service %s at %s", name, host, port)
		}
	}
}

// Package test runs whole daemons: the program as a process of its own, with real stores, a real Envoy and real
// clients, and what README.md, docs/ and example/ say of it.
package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gatehouse/ratelimit/internal/cli"
	"gatehouse/ratelimit/internal/dnstest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
)

// asDaemon makes this test binary the program itself, so that tests run real processes of it, with
// the race detector where the tests have it.
const asDaemon = "RATELIMIT_TEST_AS_DAEMON"

// testDNS has that program look names up at a server of the test.
const testDNS = "RATELIMIT_TEST_DNS"

// quickExit: the race detector has a process sleep for a second before it exits.
const quickExit = "GORACE=atexit_sleep_ms=10"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		var program cli.Program
		if dns := os.Getenv(testDNS); dns != "" {
			program.Resolver = dnstest.Resolver(dns)
		}
		os.Exit(program.Main())
	}
	// Paths in these tests, and in the pages that they follow, begin at the daemon's folder.
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	// Most tests wait for another process. -parallel says otherwise.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	status := m.Run()
	if flag.Lookup("test.run").Value.String() == "" {
		grpcServer = "grpc-go"
		if err := flag.Set("test.run", onBothServers); err != nil {
			panic(err)
		}
		status = max(status, m.Run())
	}
	os.Exit(status)
}

// onBothServers are the tests to which the gRPC server matters: where all tests run, these run once more on grpc-go.
const onBothServers = "TestDaemon|TestForceStart|TestFailureModes|TestRedisUnavailable|TestSIGTERM|TestEnvoy|TestClients|" +
	"TestEffects/^(HOST|GRPC)"

// grpcServer is GRPC_SERVER of the daemons, "" for the default.
var grpcServer = os.Getenv("GRPC_SERVER")

// process is one daemon of a test: a real process on free ports.
type process struct {
	*subprocess.Process
	rules             string // the folder of its rules
	grpc, http, debug string // addresses
	log               *lines
	stdout            *lines
}

// command is this program with arguments and an environment of its own.
func command(env map[string]string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{asDaemon + "=1", "PATH=" + os.Getenv("PATH"), quickExit}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// launch starts a daemon and does not wait for it. rules is the YAML of one file, with @5/m for a
// limit of five a minute; empty: no file.
func launch(t testing.TB, rules string, env map[string]string) *process {
	t.Helper()
	return launchCommand(t, rules, env, func(all map[string]string) *exec.Cmd { return command(all) })
}

// launchCommand is launch with the command that a function makes.
func launchCommand(t testing.TB, rules string, env map[string]string,
	command func(map[string]string) *exec.Cmd) *process {
	t.Helper()
	p := &process{rules: t.TempDir(), log: newLines(), stdout: newLines()}
	if rules != "" {
		p.write(t, rules)
	}
	all := map[string]string{
		"RUNTIME_ROOT": filepath.Dir(p.rules), "RUNTIME_APPDIRECTORY": filepath.Base(p.rules),
		"RUNTIME_WATCH_ROOT": "false",
		"GRPC_HOST":          "127.0.0.1", "GRPC_PORT": "0", "HOST": "127.0.0.1", "PORT": "0",
		"DEBUG_HOST": "127.0.0.1",
		"DEBUG_PORT": "0", "LOG_LEVEL": "info", "LOG_FORMAT": "json", "DISABLE_STATS": "true", "BACKEND_TYPE": "memory",
	}
	if grpcServer != "" {
		all["GRPC_SERVER"] = grpcServer
	}
	for name, value := range env {
		all[name] = value
	}
	cmd := command(all)
	cmd.Stdout, cmd.Stderr = p.stdout, p.log
	var err error
	if p.Process, err = subprocess.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(time.Minute)
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", p.log.text())
		}
	})
	return p
}

// start is launch, and waits until the daemon serves.
func start(t testing.TB, rules string, env map[string]string) *process {
	t.Helper()
	p := launch(t, rules, env)
	p.awaitReady(t)
	return p
}

func (p *process) awaitReady(t testing.TB) {
	t.Helper()
	var ready struct {
		GRPC  string `json:"grpc"`
		HTTP  string `json:"http"`
		Debug string `json:"debug"`
	}
	p.log.await(t, `"ready"`, &ready)
	p.grpc, p.http, p.debug = ready.GRPC, ready.HTTP, ready.Debug
}

// write replaces the daemon's rules file in one step.
func (p *process) write(t testing.TB, rules string) {
	t.Helper()
	if !strings.Contains(rules, "domain:") {
		rules = "domain: d\ndescriptors: " + rules
	}
	next := filepath.Join(p.rules, ".next")
	must.Succeed(t, os.WriteFile(next, []byte(short(rules)), 0o644))
	must.Succeed(t, os.Rename(next, filepath.Join(p.rules, "rules.yaml")))
}

// short expands @5/m to a rate_limit of five a minute (s, m, h, d, y).
func short(rules string) string {
	for letter, unit := range map[string]string{"s": "second", "m": "minute", "h": "hour", "d": "day", "y": "year"} {
		for i := strings.LastIndex(rules, "/"+letter); i > 0; i = strings.LastIndex(rules[:i], "/"+letter) {
			at := strings.LastIndex(rules[:i], "@")
			if at < 0 || strings.Trim(rules[at+1:i], "0123456789") != "" {
				continue
			}
			rules = rules[:at] + "rate_limit: {requests_per_unit: " + rules[at+1:i] + ", unit: " + unit + "}" +
				rules[i+2:]
			i = at + 1
		}
	}
	return rules
}

// freeze stops the daemon, and waits until none of its threads runs any more: on a busy machine one may still
// answer a request after the signal.
func (p *process) freeze(t testing.TB) {
	t.Helper()
	must.Succeed(t, p.Signal(syscall.SIGSTOP))
	await.True(t, "the daemon stands still", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		must.Succeed(t, err)
		for _, path := range stats {
			text, err := os.ReadFile(path)
			if _, state, _ := strings.Cut(string(text), ") "); err == nil && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

// dial opens a client of its own connection.
func (p *process) dial(t testing.TB) pb.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	return pb.NewRateLimitServiceClient(conn)
}

func request(key, value string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitpb.RateLimitDescriptor{
		{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

// decide1 sends one request, within half a minute.
func decide1(t testing.TB, c pb.RateLimitServiceClient, key, value string) *pb.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	got, err := c.ShouldRateLimit(ctx, request(key, value))
	must.Succeed(t, err)
	return got
}

// get reads a page of the daemon.
func get(t testing.TB, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
	return resp.StatusCode, string(b)
}

// lines are what a process writes.
type lines struct{ subprocess.Lines }

func newLines() *lines { return new(lines) }

func (l *lines) text() string { return l.String() }

// await waits for a line that contains part and decodes its JSON into v, if v is not nil.
func (l *lines) await(t testing.TB, part string, v any) {
	t.Helper()
	if err := l.Await(part, v, nil, time.Minute); err != nil {
		t.Fatalf("%v in:\n%s", err, l)
	}
}

func TestShort(t *testing.T) {
	got := short(`[{key: a, @5/m}, {key: p, value: /m, @10/h}]`)
	want := `[{key: a, rate_limit: {requests_per_unit: 5, unit: minute}}, {key: p, value: /m, rate_limit: {requests_per_unit: 10, unit: hour}}]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The steps of a new user: a limit, an edit, an error, SIGHUP, a stop.
func TestDaemon(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @2/y}]`, nil)
	c := p.dial(t)
	for i, want := range []pb.RateLimitResponse_Code{pb.RateLimitResponse_OK, pb.RateLimitResponse_OK,
		pb.RateLimitResponse_OVER_LIMIT} {
		if got := decide1(t, c, "k", "v"); got.OverallCode != want {
			t.Errorf("request %d: %v, want %v", i+1, got.OverallCode, want)
		}
	}
	body := `{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`
	resp, err := http.Post("http://"+p.http+"/json", "application/json", strings.NewReader(body))
	must.Succeed(t, err)
	resp.Body.Close()
	if resp.StatusCode != 429 {
		t.Errorf("/json: %d, want 429", resp.StatusCode)
	}
	if status, body := get(t, p.http+"/healthcheck"); status != 200 || body != "OK" {
		t.Errorf("/healthcheck: %d %q", status, body)
	}

	p.write(t, `[{key: k, @100/y}]`)
	await.True(t, "the edit changes the next answer", func() bool {
		return decide1(t, c, "k", "v").Statuses[0].CurrentLimit.RequestsPerUnit == 100
	})
	p.write(t, `[{key: k, @100/fortnight}]`)
	await.True(t, "the mistake shows on the debug port", func() bool {
		_, body := get(t, p.debug+"/rlconfig?format=json")
		return strings.Contains(body, `"error": "rules.yaml:2:`)
	})
	if got := decide1(t, c, "k", "v").Statuses[0].CurrentLimit.RequestsPerUnit; got != 100 {
		t.Errorf("after a refused set the limit is %d, want 100", got)
	}
	p.write(t, `[{key: k, @7/y}]`)
	must.Succeed(t, p.Signal(syscall.SIGHUP))
	await.True(t, "SIGHUP reads the rules again", func() bool {
		return decide1(t, c, "k", "v").Statuses[0].CurrentLimit.RequestsPerUnit == 7
	})
	must.Succeed(t, p.Stop(time.Minute))
}

// A stop in any phase of the start ends the process cleanly and soon.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	f := func(name, rules, waitFor string, env map[string]string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
				p := launch(t, rules, env)
				p.log.await(t, waitFor, nil)
				must.Succeed(t, p.Signal(sig))
				select {
				case <-p.Ended():
				case <-time.After(time.Minute):
					t.Fatal("still running 10 s later")
				}
				if err := p.Stop(0); err != nil {
					t.Errorf("%v: %v, want exit status 0", sig, err)
				}
			}
		})
	}
	f("the store does not answer", `[{key: k, @2/m}]`, "configuration loaded", map[string]string{
		"BACKEND_TYPE": "redis", "KVSTORE_URL": "127.0.0.1:1"})
	f("no valid rules", `[{key: k, surprise: 1}]`, "configuration refused", nil)
}

func TestSettings_allMistakesAtOnce(t *testing.T) {
	t.Parallel()
	out, err := command(map[string]string{"GRPC_PORT": "eighty", "NEAR_LIMIT_RATIO": "2", "BACKEND_TYPE": "redis",
		"KVSTORE_PERSECOND": "true"}).CombinedOutput()
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.ExitCode() != 1 {
		t.Errorf("%v, want exit status 1", err)
	}
	for _, part := range []string{"GRPC_PORT", "eighty", "NEAR_LIMIT_RATIO", "KVSTORE_URL", "KVSTORE_PERSECOND_URL"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("no %q in:\n%s", part, out)
		}
	}
}

// Without a file the daemon waits for rules, unless it is configured to start without.
func TestForceStart(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, surprise: 1}]`,
		map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
			"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"})
	c := p.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.ShouldRateLimit(ctx, request("k", "v")); err == nil ||
		!strings.Contains(err.Error(), "no rate limit configuration loaded") {
		t.Errorf("without rules: %v", err)
	}
	if status, _ := get(t, p.http+"/healthcheck"); status != 500 {
		t.Errorf("healthy without rules: %d", status)
	}
	p.write(t, `[{key: k, @2/m}]`)
	await.True(t, "healthy with rules", func() bool {
		status, _ := get(t, p.http+"/healthcheck")
		return status == 200
	})
	decide1(t, c, "k", "v")
}

// The readers of the log and the statistics may end; the daemon serves on, reloads and shuts down cleanly.
func TestLogReaderEnds(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	must.Succeed(t, err)
	defer read.Close()
	p := &process{rules: t.TempDir()}
	p.write(t, `[{key: k, @2/y}]`)
	cmd := command(map[string]string{
		"RUNTIME_ROOT": p.rules, "RUNTIME_APPDIRECTORY": ".", "HOST": "127.0.0.1", "PORT": "0",
		"GRPC_HOST":  "127.0.0.1",
		"GRPC_PORT":  "0",
		"DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0", "BACKEND_TYPE": "memory", "LOG_LEVEL": "info",
		"LOG_FORMAT": "json",
		"USE_STATSD": "false", "STATS_FLUSH_INTERVAL": "10ms",
	})
	cmd.Stdout, cmd.Stderr = write, write
	if p.Process, err = subprocess.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(time.Minute) })
	write.Close()
	for lines := bufio.NewScanner(read); p.grpc == "" && lines.Scan(); {
		var ready struct{ GRPC, Debug string }
		if strings.Contains(lines.Text(), `"ready"`) && json.Unmarshal(lines.Bytes(), &ready) == nil {
			p.grpc, p.debug = ready.GRPC, ready.Debug
		}
	}
	read.Close()
	must.Succeed(t, p.Signal(syscall.SIGHUP))
	await.True(t, "a reload", func() bool {
		_, body := get(t, p.debug+"/rlconfig?format=json")
		return strings.Contains(body, `"generation": 2`)
	})
	decide1(t, p.dial(t), "k", "v")
	must.Succeed(t, p.Stop(time.Minute))
}

// What was counted before a stop is flushed by it, however long the interval.
func TestFinalFlush(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @2/m}]`,
		map[string]string{"DISABLE_STATS": "false", "USE_STATSD": "false", "STATS_FLUSH_INTERVAL": "1h"})
	decide1(t, p.dial(t), "k", "v")
	must.Succeed(t, p.Stop(time.Minute))
	if out := p.stdout.text(); !strings.Contains(out, `"ratelimit.service.rate_limit.d.k.total_hits"`) {
		t.Errorf("standard output holds:\n%s", out)
	}
}

// exitOf is the exit status of a command that was run; -1 when it was not.
func exitOf(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return -1
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @1/y}]`, nil)
	f := func(exit int, args []string, parts ...string) string {
		t.Helper()
		out, err := command(nil, args...).CombinedOutput()
		if code := exitOf(err); code != exit {
			t.Errorf("%q: exit status %d, want %d", args, code, exit)
		}
		for _, part := range parts {
			if !strings.Contains(string(out), part) {
				t.Errorf("%q: no %q in:\n%s", args, part, out)
			}
		}
		return string(out)
	}
	ask := []string{"client", "-dial_string", p.grpc, "--domain=d", "-descriptors", "k=v", "-descriptors", "k=a=b,x=y"}
	if out := f(0, ask, "overall_code:OK"); !strings.HasPrefix(out, "response: ") {
		t.Errorf("more than the answer:\n%s", out)
	}
	f(0, ask, "overall_code:OVER_LIMIT")
	f(1, []string{"client", "-dial_string", p.grpc, "-descriptors", "k=v"}, "request error: ",
		"rate limit domain must not be empty")
	f(2, []string{"client", "-descriptors", "k"}, `"k" is no key=value pair`, "-dial_string")
	f(2, []string{"client", "-dial_string", p.grpc, "-domain", "d", "-descriptors", ""},
		"a descriptor without entries; want key=value,key=value")
	f(2, []string{"client", "-nonsense"}, "-nonsense")

	f(0, []string{"check", p.rules}, "loading config directory: "+p.rules, "opening config file: "+p.rules+"/rules.yaml",
		"all rate limit configs ok")
	bad := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "domain: a\ndescriptors: [{key: k, rate_limt: 1}]",
		"b.yaml": "domain: a\ndescriptors: [{value: v}]", "c.yaml": "{"} {
		must.Succeed(t, os.WriteFile(filepath.Join(bad, name), []byte(text), 0o644))
	}
	f(1, []string{"check", "-config_dir", bad}, "error loading rate limit configs: "+bad+"/a.yaml:2:", "rate_limit",
		"b.yaml:2:", "c.yaml:")
	must.Succeed(t, errors.Join(
		os.WriteFile(filepath.Join(bad, "limits"), []byte("domain: e\n"), 0o644),
		os.Mkdir(filepath.Join(bad, "sub"), 0o755),
		os.Symlink("nowhere", filepath.Join(bad, "lost.yaml")),
	))
	const notRead = "not read: only files named *.yaml or *.yml in the directory itself are, each once: "
	f(1, []string{"check", bad}, "warning: "+notRead+bad+"/limits "+bad+"/sub\n", "lost.yaml: ", "a.yaml:2:", "c.yaml:")
	f(2, []string{"explain", "-domain", "d", bad}, "ratelimit explain: "+notRead+"limits sub/\n", "lost.yaml: ")
	f(1, []string{"check", filepath.Join(bad, "none")}, "none")

	one, odd := filepath.Join(p.rules, "rules.yaml"), filepath.Join(bad, "limits")
	if out := f(0, []string{"check", one}, "opening config file: "+one+"\n",
		"all rate limit configs ok"); strings.Contains(out, "loading config directory") {
		t.Errorf("check of a file names a folder:\n%s", out)
	}
	f(0, []string{"check", one, odd}, "opening config file: "+one+"\n", "opening config file: "+odd+"\n",
		"all rate limit configs ok")
	f(1, []string{"check", one, p.rules}, "the domain is already configured in ")
	f(1, []string{"check", filepath.Join(bad, "a.yaml")},
		"error loading rate limit configs: "+filepath.Join(bad, "a.yaml")+":2:")
	f(2, []string{"check", "-settings", one}, "-settings takes a folder, not "+one)
	for text, want := range map[string]string{"domain: x\n": "all rate limit configs ok",
		"- x\n": "error loading rate limit configs: <stdin>:1:1: the file must be a map"} {
		check := command(nil, "check", "-")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); !strings.Contains(string(out), want) ||
			(exitOf(err) == 0) != (text == "domain: x\n") {
			t.Errorf("check - of %q: %v\n%s", text, err, out)
		}
	}
	f(2, []string{"check"}, "usage: ratelimit check")
	g := func(exit int, env map[string]string, parts ...string) {
		t.Helper()
		out, err := command(env, "check", "-settings").CombinedOutput()
		if code := exitOf(err); code != exit {
			t.Errorf("check -settings with %v: exit status %d, want %d", env, code, exit)
		}
		for _, part := range parts {
			if !strings.Contains(string(out), part) {
				t.Errorf("check -settings with %v: no %q in:\n%s", env, part, out)
			}
		}
	}
	at := map[string]string{"RUNTIME_ROOT": filepath.Dir(p.rules), "RUNTIME_APPDIRECTORY": filepath.Base(p.rules)}
	g(0, at, "all settings ok", "loading config directory: "+p.rules+"\n", "all rate limit configs ok")
	bucket := filepath.Join(bad, "bucket")
	must.Succeed(t, os.MkdirAll(filepath.Join(bucket, "rules"), 0o777))
	must.Succeed(t, os.WriteFile(
		filepath.Join(bucket, "rules", "a.yaml"), []byte("domain: d\ndescriptors: [{key: k, rate_limit: "+
			"{unit: day, requests_per_unit: 1, algorithm: token_bucket}}]\n"), 0o666))
	f(0, []string{"check", filepath.Join(bucket, "rules")})
	g(0, map[string]string{"RUNTIME_ROOT": bucket, "RUNTIME_APPDIRECTORY": "rules"})
	g(1, map[string]string{"RUNTIME_ROOT": bucket, "RUNTIME_APPDIRECTORY": "rules", "BACKEND_TYPE": "memcache",
		"MCACHE_HOST_PORT": "127.0.0.1:1"},
		`descriptor k: algorithm token_bucket cannot be counted in memcached, which cannot `+
			`read, decide and write in one step; use fixed_window or a Redis store`)
	at["GRPC_SERVER_USE_TLS"], at["GRPC_SERVER_TLS_CERT"], at["GRPC_SERVER_TLS_KEY"] = "true", "/none.crt", "/none.key"
	g(1, at, `GRPC_SERVER_TLS_CERT="/none.crt": open /none.crt: no such file`,
		`GRPC_SERVER_TLS_KEY="/none.key": open /none.key: no such file`)
	g(0, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW"}, "the control plane at localhost:18000")

	f(0, []string{"explain", "-domain", "d", "-descriptors", "k=v", p.rules}, "decides: 1 per YEAR", "d_k_v_")
	f(0, []string{"explain", "-domain", "d", "-descriptors", "x=y", "-descriptors", "k=v", p.rules}, "no match",
		"\nrequest\nleft        descriptor 2: 1 per YEAR\n")
	f(1, []string{"explain", "-domain", "d", "-descriptors", "x=v", p.rules}, "x")
	f(1, []string{"explain", "-domain", "other", "-descriptors", "x=v", "-format", "json", p.rules},
		`"outcome": "unknown_domain"`)
	f(2, []string{"explain", "-domain", "d", "-descriptors", "x", p.rules}, "key=value")
	must.Succeed(t, os.Remove(filepath.Join(bad, "lost.yaml")))
	f(2, []string{"explain", "-domain", "d", bad}, "a.yaml:2:")
	f(2, []string{"explain"}, "usage: ratelimit explain")

	f(0, []string{"version"}, "ratelimit ", "go1.")
	f(0, []string{"help"}, "usage: ratelimit")
	f(2, []string{"sevre"}, `no command "sevre"`)
	f(2, []string{"serve", "now"}, "takes no arguments")
}

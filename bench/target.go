//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/shared/localserver"
	"gatehouse/shared/subprocess"
)

// target is a process that is measured.
type target struct {
	name    string
	addr    string // address of its gRPC or HTTP listener, to which the load is sent
	http    string // address of a daemon's HTTP listener
	debug   string // address of a daemon's debug port; "" for a yardstick
	process *subprocess.Process
	envoy   *target               // the Envoy that calls it; nil if there is none
	stores  []*localserver.Server // servers in which it counts; none if it counts in its own memory or not at all
	rules   string                // path of its rules file
}

// testbed starts targets and stops them at the end. Its folder has their rules and logs.
type testbed struct {
	dir     string
	daemon  string   // path of the program bin/ratelimit
	statsd  []string // settings that say where ratelimit sends statistics
	extra   []string // additional settings of ratelimit, each NAME=value
	started []*target

	against    string   // folder with earlier programs; "" for none
	authDaemon string   // path of the program bin/auth
	authExtra  []string // additional settings of auth

	group   *controlGroup          // the control group in which processes start now; nil for none
	servers []interface{ Close() } // closed after the targets have ended
}

// startServer starts a server, which is closed after all targets have ended.
func startServer[S interface{ Close() }, O any](ctx context.Context, l *testbed,
	start func(context.Context, O) (S, error), options O) (S, error) {
	server, err := start(ctx, options)
	if err == nil {
		l.servers = append(l.servers, server)
	}
	return server, err
}

// grace is how long a target may take to end by itself. It is longer than the daemons' own time for draining.
const grace = 15 * time.Second

// close stops all targets and closes all servers. It returns an error if a daemon did not shut down cleanly.
func (l *testbed) close() error {
	var err error
	for _, t := range l.started {
		err = errors.Join(err, t.process.Stop(grace))
	}
	for _, server := range l.servers {
		server.Close()
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// settings adds settings of the daemons. text has NAME=value separated by spaces. Names that begin with AUTH_ are for
// auth, those that begin with GO, which are for the Go runtime, for both daemons, and all others for ratelimit.
func (l *testbed) settings(text string) {
	for _, setting := range strings.Fields(text) {
		auth, runtime := strings.HasPrefix(setting, "AUTH_"), strings.HasPrefix(setting, "GO")
		if auth || runtime {
			l.authExtra = append(l.authExtra, setting)
		}
		if !auth {
			l.extra = append(l.extra, setting)
		}
	}
}

// stop stops one target, and the Envoy in front of it, before the end of the measurement.
func (l *testbed) stop(t *target) error {
	if t.envoy != nil {
		if err := l.stop(t.envoy); err != nil {
			return err
		}
	}
	l.started = slices.DeleteFunc(l.started, func(other *target) bool { return other == t })
	if err := t.process.Stop(grace); err != nil {
		return fmt.Errorf("%s: %w\n%s", t.name, err, l.logTail(t))
	}
	return nil
}

// yardstick starts another process of this program as a yardstick. Its kind is also its name.
func (l *testbed) yardstick(ctx context.Context, kind, database string) (*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("yardstick: %w", err)
	}
	t := &target{name: kind}
	return t, l.start(ctx, t, exec.Command(self, "yardstick", "-kind", kind, "-database", database),
		func(context.Context) error {
			var whole bool
			if t.addr, _, whole = strings.Cut(l.logTail(t), "\n"); !whole {
				return errors.New("no address yet")
			}
			return nil
		})
}

// daemon describes a ratelimit daemon to start. It counts in the given stores, which are a Redis unless the settings
// say otherwise; without stores, it counts in its own memory.
type daemon struct {
	name     string
	rules    []byte
	stores   []*localserver.Server
	settings []string
}

// ratelimit starts the given program as a ratelimit daemon and returns when it has made its first decision. suffix is
// appended to the daemon's name.
func (l *testbed) ratelimit(ctx context.Context, program, suffix string, d daemon) (*target, error) {
	home := filepath.Join(l.dir, d.name+suffix)
	t := &target{name: d.name + suffix, rules: filepath.Join(home, "config", "bench.yaml"), stores: d.stores}
	if err := os.MkdirAll(filepath.Dir(t.rules), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.rules, d.rules, 0o644); err != nil {
		return nil, err
	}
	ports, err := localserver.FreePorts(3)
	if err != nil {
		return nil, err
	}
	t.addr, t.http, t.debug = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], "127.0.0.1:"+ports[2]
	cmd := command(program, "serve")
	cmd.Env = append(slices.Clone(l.statsd),
		"GRPC_HOST=127.0.0.1", "GRPC_PORT="+ports[0],
		"HOST=127.0.0.1", "PORT="+ports[1],
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+ports[2],
		"RUNTIME_ROOT="+home, "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=false", "BACKEND_TYPE=memory")
	if len(d.stores) > 0 {
		cmd.Env = append(cmd.Env, "BACKEND_TYPE=kvstore", "KVSTORE_URL="+d.stores[0].Addr())
	}
	cmd.Env = append(append(cmd.Env, l.extra...), d.settings...)
	return t, l.start(ctx, t, cmd, t.decides)
}

// decides requests one decision, and returns an error if there is none.
func (t *target) decides(context.Context) error {
	_, err := load{addr: t.addr, traffic: grpcTraffic{scenario: scenarios["unmatched"], streams: 1}, conns: 1, calls: 1,
		run: time.Second}.drive()
	return err
}

// start starts a target's process and returns when ready no longer returns an error.
func (l *testbed) start(ctx context.Context, t *target, cmd *exec.Cmd, ready func(context.Context) error) error {
	if err := l.begin(t, cmd); err != nil {
		return err
	}
	return l.retry(ctx, t, ready)
}

// command returns a command that runs a program in the present folder, not one on PATH.
func command(program string, args ...string) *exec.Cmd {
	path, _ := filepath.Abs(program) // fails only if the present folder has been removed
	return exec.Command(path, args...)
}

// begin starts a target's process in a folder of its own, which has the target's log and no .env.
func (l *testbed) begin(t *target, cmd *exec.Cmd) (err error) {
	cmd.Dir = filepath.Join(l.dir, t.name)
	if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(cmd.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has a file descriptor of its own
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(cmd.Env, "PATH="+os.Getenv("PATH"))
	if l.group != nil {
		l.group.enter(cmd)
	}
	if t.process, err = subprocess.Start(cmd); err == nil {
		l.started = append(l.started, t)
	}
	return err
}

// retry calls ask until it returns nil. It gives up when the target ends or after a minute.
func (l *testbed) retry(ctx context.Context, t *target, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-t.process.Ended():
			return fmt.Errorf("%s ended while starting:\n%s", t.name, l.logTail(t))
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w\n%s", t.name, err, l.logTail(t))
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// logTail returns the end of a target's log.
func (l *testbed) logTail(t *target) string {
	log, err := os.ReadFile(filepath.Join(l.dir, t.name, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2_000):])
}

//go:embed envoy.yaml
var envoyConfig string

// startEnvoys starts an Envoy in front of each target that is also measured through an Envoy, if Envoy is installed.
func (s *suite) startEnvoys(ctx context.Context) error {
	program := localserver.Envoy(".")
	for _, l := range s.testbed.withEditions(slices.Concat(groups()...), 0) {
		if l.via != viaEnvoy || !s.wants("ratelimit", l) || s.target(l) == nil {
			continue
		}
		if program == "" {
			s.refused = append(s.refused, "targets behind Envoy: there is none (.ci/envoy fetches one, ENVOY_BIN names one)")
			return nil
		}
		if err := s.testbed.envoy(ctx, program, s.target(l)); err != nil {
			return err
		}
	}
	return nil
}

// envoy starts an Envoy in front of a target and waits until a request has passed through both.
func (l *testbed) envoy(ctx context.Context, program string, front *target) error {
	ports, err := localserver.FreePorts(2)
	if err != nil {
		return err
	}
	_, service, _ := net.SplitHostPort(front.addr) // cannot fail: the port is a number
	t := &target{name: "envoy of " + front.name, addr: "127.0.0.1:" + ports[0]}
	config := filepath.Join(l.dir, "envoy-"+ports[0]+".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, ports[0], ports[1], service), 0o644); err != nil {
		return err
	}
	front.envoy = t
	cmd := exec.Command(program, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	return l.start(ctx, t, cmd, t.answers("/", ""))
}

// throughEnvoy returns HTTP requests for which Envoy calls ratelimit with the values of a scenario that has one entry.
func throughEnvoy(s scenario) httpTraffic {
	next := numbers(s)
	return httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) {
			return fmt.Appendf(b, "GET / HTTP/1.1\r\nHost: bench.example\r\nX-Key: key-%07d\r\n\r\n", next()), true
		},
		judge: answered(200),
	}
}

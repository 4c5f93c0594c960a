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

// target is a process under measurement.
type target struct {
	name    string
	addr    string // its gRPC listener
	http    string // the daemon's HTTP listener
	debug   string // its debug listener, "" for a yardstick
	process *subprocess.Process
	envoy   *target               // an Envoy that calls it, nil without one
	stores  []*localserver.Server // the stores that count; none when it counts in process or not at all
	rules   string                // its rules file
}

// testbed starts targets and ends all of them. Its folder has their rules and logs.
type testbed struct {
	dir     string
	daemon  string   // path of bin/ratelimit
	statsd  []string // settings of its statistics
	extra   []string // further settings of ratelimit, NAME=value
	started []*target

	against    string   // folder with earlier programs, "" for none
	authDaemon string   // path of bin/auth
	authExtra  []string // further settings of auth

	group   *controlGroup          // in which processes start now; nil: none
	servers []interface{ Close() } // end after the targets
}

// startServer starts a server that ends after all targets.
func startServer[S interface{ Close() }, O any](ctx context.Context, l *testbed,
	start func(context.Context, O) (S, error), options O) (S, error) {
	server, err := start(ctx, options)
	if err == nil {
		l.servers = append(l.servers, server)
	}
	return server, err
}

// grace is how long a target may take to end by itself: longer than the daemon's drain deadline.
const grace = 15 * time.Second

// close ends everything. It returns an error if a daemon did not shut down cleanly.
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

// settings adds further settings of the daemons, NAME=value separated by spaces: AUTH_… are auth's, GO… (those of the
// Go runtime) are both daemons', others ratelimit's.
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

// stop ends one target, and the Envoy in front of it, before the others end.
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

// yardstick starts this program again as a yardstick of the kind that is its name.
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

// daemon is a rate limit daemon to start: on the given stores, a Redis unless the settings say otherwise, or without
// stores on its in-process store.
type daemon struct {
	name     string
	rules    []byte
	stores   []*localserver.Server
	settings []string
}

// ratelimit starts a program of the daemon and returns after its first decision.
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

// decides requests one decision.
func (t *target) decides(context.Context) error {
	_, err := load{addr: t.addr, traffic: grpcTraffic{scenario: scenarios["unmatched"], streams: 1}, conns: 1, calls: 1,
		run: time.Second}.drive()
	return err
}

// start starts a target's process, and returns when ready does not fail any more.
func (l *testbed) start(ctx context.Context, t *target, cmd *exec.Cmd, ready func(context.Context) error) error {
	if err := l.begin(t, cmd); err != nil {
		return err
	}
	return l.retry(ctx, t, ready)
}

// command returns a command of a program of this folder, not one on PATH.
func command(program string, args ...string) *exec.Cmd {
	path, _ := filepath.Abs(program) // fails only if the folder has been removed
	return exec.Command(path, args...)
}

// begin starts a target's process, with a log of its own, in a folder without a .env.
func (l *testbed) begin(t *target, cmd *exec.Cmd) (err error) {
	cmd.Dir = filepath.Join(l.dir, t.name)
	if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(cmd.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has a descriptor of its own
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(cmd.Env, "PATH="+os.Getenv("PATH"))
	if l.group != nil {
		l.group.enter(cmd)
	}
	if t.process, err = subprocess.Start(cmd); err == nil {
		l.started = append(l.started, t)
	}
	return err
}

// retry calls ask until it succeeds, the target ends, or a minute is over.
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

// logTail returns the end of a daemon's log.
func (l *testbed) logTail(t *target) string {
	log, err := os.ReadFile(filepath.Join(l.dir, t.name, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2_000):])
}

//go:embed envoy.yaml
var envoyConfig string

// startEnvoys starts an Envoy in front of each target that is measured through one, if Envoy is installed.
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

// envoy starts an Envoy in front of a target and waits until a request has passed.
func (l *testbed) envoy(ctx context.Context, program string, front *target) error {
	ports, err := localserver.FreePorts(2)
	if err != nil {
		return err
	}
	_, service, _ := net.SplitHostPort(front.addr) // made of a free port
	t := &target{name: "envoy of " + front.name, addr: "127.0.0.1:" + ports[0]}
	config := filepath.Join(l.dir, "envoy-"+ports[0]+".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, ports[0], ports[1], service), 0o644); err != nil {
		return err
	}
	front.envoy = t
	cmd := exec.Command(program, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	return l.start(ctx, t, cmd, t.answers("/", ""))
}

// throughEnvoy returns requests for which Envoy calls with the values of a scenario of one entry.
func throughEnvoy(s scenario) httpTraffic {
	next := numbers(s)
	return httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) {
			return fmt.Appendf(b, "GET / HTTP/1.1\r\nHost: bench.example\r\nX-Key: key-%07d\r\n\r\n", next()), true
		},
		judge: answered(200),
	}
}

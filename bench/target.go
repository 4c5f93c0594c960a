//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	envoy   *target               // an Envoy that asks it, nil without one
	stores  []*localserver.Server // the servers that count; none when it counts in process or not at all
	rules   string                // its rules file
}

// testbed starts targets and ends all of them. Its folder holds their rules and logs.
type testbed struct {
	dir     string
	daemon  string   // path of bin/ratelimit
	statsd  string   // host:port of our sink, "" for DISABLE_STATS
	extra   []string // further settings of ratelimit, NAME=value
	started []*target
	sink    *sink

	against    string   // folder with earlier programs, "" for none
	authDaemon string   // path of bin/auth
	authExtra  []string // further settings of auth
}

// grace is how long a target may take to end by itself: longer than the daemon's drain deadline.
const grace = 15 * time.Second

// close ends everything. An error is a daemon that did not shut down cleanly.
func (l *testbed) close() error {
	var err error
	for _, t := range l.started {
		err = errors.Join(err, t.process.Stop(grace))
	}
	if l.sink != nil {
		l.sink.close()
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// settings takes further settings of the daemons, NAME=value separated by spaces: AUTH_… are auth's, GO…
// (those of the Go runtime) both's, the others ratelimit's.
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

// stop ends one target before the others.
func (l *testbed) stop(t *target) error {
	l.started = remove(l.started, t)
	return t.process.Stop(grace)
}

func remove(from []*target, t *target) []*target {
	var left []*target
	for _, other := range from {
		if other != t {
			left = append(left, other)
		}
	}
	return left
}

// yardstick starts one that answers like the daemon does to a scenario.
func (l *testbed) yardstick(kind, answer string) (*target, error) {
	return l.startSelf(kind, "yardstick", "-kind", kind, "-answer", answer)
}

// startSelf starts this program once more, as a server that writes its address as the first line.
func (l *testbed) startSelf(name string, args ...string) (*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("yardstick: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("yardstick: %w", err)
	}
	defer out.Close()
	cmd.Stdout = in
	process, err := subprocess.Start(cmd)
	in.Close()
	if err != nil {
		return nil, fmt.Errorf("yardstick: %w", err)
	}
	t := &target{name: name, process: process}
	l.started = append(l.started, t)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("yardstick: address: %w", err)
	}
	t.addr = strings.TrimSpace(line)
	return t, nil
}

// ratelimit starts the daemon with rules and settings of its own, on the given store, a Redis unless the
// settings say otherwise, or, with nil, on its in-process store. It returns at once; await
// waits for the first decision.
func (l *testbed) ratelimit(name string, rules []byte, store *localserver.Server, settings ...string) (*target, error) {
	return l.ratelimitOf(l.daemon, name, rules, store, settings...)
}

// ratelimitOf does the same with another program.
func (l *testbed) ratelimitOf(program, name string, rules []byte, store *localserver.Server, settings ...string) (
	*target, error) {
	home := filepath.Join(l.dir, name)
	t := &target{name: name, rules: filepath.Join(home, "config", "bench.yaml")}
	if err := os.MkdirAll(filepath.Dir(t.rules), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.rules, rules, 0o644); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	t.addr, t.http, t.debug = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], "127.0.0.1:"+ports[2]

	log, err := os.OpenFile(filepath.Join(home, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, "serve")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"),
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[0],
		"HOST=127.0.0.1", "PORT=" + ports[1],
		"DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[2],
		"RUNTIME_ROOT=" + home, "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=false",
	}, l.statsSettings()...)
	if store == nil {
		cmd.Env = append(cmd.Env, "BACKEND_TYPE=memory")
	} else {
		t.stores = []*localserver.Server{store}
		cmd.Env = append(cmd.Env, "BACKEND_TYPE=kvstore", "KVSTORE_URL="+store.Addr())
	}
	cmd.Env = append(append(cmd.Env, l.extra...), settings...)
	if t.process, err = subprocess.Start(cmd); err != nil {
		return nil, err
	}
	l.started = append(l.started, t)
	return t, nil
}

func (l *testbed) statsSettings() []string {
	if l.statsd == "" {
		return []string{"DISABLE_STATS=true"}
	}
	host, port, _ := net.SplitHostPort(l.statsd) // made by the sink
	return []string{"USE_STATSD=true", "STATSD_HOST=" + host, "STATSD_PORT=" + port}
}

// await returns after the target's first decision, which it requests again and again.
func (l *testbed) await(ctx context.Context, t *target) error {
	return l.retry(ctx, t, 20*time.Second, func(context.Context) error {
		_, err := load{addr: t.addr, traffic: grpcTraffic{scenario: scenarios["unmatched"], streams: 1}, conns: 1,
			calls: 1, run: time.Second}.drive()
		return err
	})
}

// retry calls ask until it succeeds, the target ends, or the time is over.
func (l *testbed) retry(ctx context.Context, t *target, within time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
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

// logTail is the end of a daemon's log.
func (l *testbed) logTail(t *target) string {
	log, err := os.ReadFile(filepath.Join(l.dir, t.name, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2_000):])
}

// freePorts returns TCP ports without a listener a moment ago.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are held until the last is found, so that none comes twice
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// sink is a statsd server that discards everything, over TCP and UDP on one port.
type sink struct {
	listener net.Listener
	packets  net.PacketConn
}

func startSink() (*sink, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	packets, err := net.ListenPacket("udp4", listener.Addr().String())
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("statsd sink: %w", err)
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	go func() {
		for buf := make([]byte, 64<<10); ; {
			if _, _, err := packets.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
	return &sink{listener: listener, packets: packets}, nil
}

func (s *sink) addr() string { return s.listener.Addr().String() }

func (s *sink) close() {
	s.listener.Close()
	s.packets.Close()
}

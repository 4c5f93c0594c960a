package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"gatehouse/shared/subprocess"
)

// ratelimit is the running rate limit daemon, which counts in its own memory.
type ratelimit struct {
	process           *subprocess.Process
	program, rules    string
	grpc, http, debug string // addresses of the listeners, as host:port
}

const (
	// startTime is how long a daemon may take to become healthy, even on a busy machine.
	startTime = 20 * time.Second
	// stopTime is how long a daemon may take to stop. It is longer than the daemons' own time for draining.
	stopTime = 20 * time.Second
)

// startRatelimit starts the rate limit daemon and returns when it is healthy.
func startRatelimit(ctx context.Context, bin, dir string, out io.Writer) (*ratelimit, error) {
	home, err := filepath.Abs(filepath.Join(dir, "ratelimit"))
	if err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	r := &ratelimit{program: filepath.Join(bin, "ratelimit"),
		rules: filepath.Join(dir, "ratelimit", "config", "rules.yaml")}
	kept, err := writeRules(r.rules)
	if err != nil {
		return nil, fmt.Errorf("ratelimit: rules: %w", err)
	}
	if kept {
		fmt.Fprintf(out, "%s is there already and is kept\n", r.rules)
	}
	for _, l := range []struct {
		name string
		port int
		addr *string
	}{{"gRPC", 8081, &r.grpc}, {"HTTP", 8080, &r.http}, {"debug", 6070, &r.debug}} {
		if *l.addr, err = freeAddr(l.port); err != nil {
			return nil, fmt.Errorf("ratelimit: %s: %w", l.name, err)
		}
		if want := loopback(l.port); *l.addr != want {
			fmt.Fprintf(out, "%s is busy: %s listens on %s\n", want, l.name, *l.addr)
		}
	}

	program, err := filepath.Abs(r.program)
	if err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	cmd := exec.Command(program, "serve")
	cmd.Env = append(r.environment(home), passedOn("PATH", "HOME", "LOG_LEVEL", "LOG_FORMAT")...)
	cmd.Stdout, cmd.Stderr = out, out
	if r.process, err = subprocess.Start(cmd); err != nil {
		return nil, fmt.Errorf("ratelimit: %w (make build makes it)", err)
	}
	if err := awaitReady(ctx, r.process, "http://"+r.http+"/healthcheck"); err != nil {
		return nil, errors.Join(fmt.Errorf("ratelimit: %w", err), r.stop())
	}
	return r, nil
}

// environment returns the daemon's environment. It has only the settings that make run needs: in the developer's own
// environment, a variable that is meant for another daemon would change this daemon, too.
func (r *ratelimit) environment(home string) []string {
	set := []string{
		"BACKEND_TYPE=memory",
		"RUNTIME_ROOT=" + home, "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=false",
		"DISABLE_STATS=true", // statistics are not sent anywhere, but the debug port shows them
	}
	for _, l := range []struct{ prefix, addr string }{{"GRPC_", r.grpc}, {"", r.http}, {"DEBUG_", r.debug}} {
		host, port, _ := net.SplitHostPort(l.addr) // loopback has made the address, so it is valid
		set = append(set, l.prefix+"HOST="+host, l.prefix+"PORT="+port)
	}
	return set
}

func passedOn(names ...string) (set []string) {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			set = append(set, name+"="+v)
		}
	}
	return set
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freeAddr returns the loopback address with the first free port among port, port + 10,000, port + 20,000 and so on.
func freeAddr(port int) (string, error) {
	for p := port; p < 1<<16; p += 10_000 {
		l, err := net.Listen("tcp", loopback(p))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", fmt.Errorf("port %d and those 10,000, 20,000, … above it are busy", port)
}

// awaitReady returns when the daemon's health URL answers with 200. It returns an error if the process ends before.
func awaitReady(ctx context.Context, p *subprocess.Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(answer.Status)
		}
		select {
		case <-p.Ended():
			return errors.New("ended while starting; its lines above say why")
		case <-ctx.Done():
			return fmt.Errorf("not healthy after %v: %w", startTime, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *ratelimit) stop() error {
	if err := r.process.Stop(stopTime); err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	return nil
}

// introduce prints where the daemon listens, and commands that a developer can copy and run as they are.
func (r *ratelimit) introduce(out io.Writer) {
	fmt.Fprintf(out, `
ratelimit   gRPC %[1]s   HTTP %[2]s   debug %[3]s

Over gRPC, three a minute, then OVER_LIMIT:
  %[4]s client -dial_string %[1]s -domain shop -descriptors user=ann
Over HTTP, two a minute, then 429:
  curl -i http://%[2]s/json -d '{"domain":"shop","descriptors":[{"entries":[{"key":"path","value":"/login"},{"key":"remote_address","value":"10.0.0.1"}]}]}'
Which rule decides, and why, without counting:
  curl 'http://%[3]s/explain?domain=shop&descriptor=user=ann'
  %[4]s explain -domain shop -descriptors path=/login,remote_address=10.0.0.1 %[5]s

The rules are in %[6]s: edit this file, the next answer changes.
`, r.grpc, r.http, r.debug, r.program, filepath.Dir(r.rules), r.rules)
}

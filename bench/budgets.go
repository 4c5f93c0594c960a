//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

const mib = 1 << 20

// otherBudgets measures the budgets that aren't about a call: start, memory, reload, the binary.
func (s *suite) otherBudgets(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "start, memory, reload")
	for _, f := range []func(context.Context) error{s.startTime, s.memory, s.connections, s.allocations, s.reload,
		s.binary} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	s.report.printBudgets("other budgets")
	return nil
}

// fresh starts a daemon on its in-process store, hands it to use after its first decision, and ends it.
func (s *suite) fresh(ctx context.Context, name string, rules []byte, use func(t *target, took time.Duration) error,
	settings ...string) error {
	began := time.Now()
	t, err := s.testbed.ratelimit(name, rules, nil, settings...)
	if err != nil {
		return err
	}
	if err := s.testbed.await(ctx, t); err != nil {
		return err
	}
	if err := use(t, time.Since(began)); err != nil {
		return err
	}
	return s.testbed.stop(t)
}

// startTime is from before the fork to the first decision on a socket.
func (s *suite) startTime(ctx context.Context) error {
	var took []float64
	for range 2*s.rounds + 1 {
		err := s.fresh(ctx, "start", ruleText(0, 1), func(_ *target, d time.Duration) error {
			took = append(took, float64(d.Microseconds())/1000)
			return nil
		})
		if err != nil {
			return err
		}
	}
	s.report.atMost(40, " ms", "start to first decision, memory", took)
	return nil
}

// memory is the daemon's RSS in several situations, each in a process of its own.
func (s *suite) memory(ctx context.Context) error {
	single := load{traffic: grpcTraffic{scenario: scenarios["single"], streams: 64}, conns: 4, run: 2 * s.time}
	rss := func(name string, limit float64, rules []byte, l load, settings ...string) error {
		return s.fresh(ctx, strings.ReplaceAll(name, " ", "-"), rules, func(t *target, _ time.Duration) error {
			time.Sleep(500 * time.Millisecond) // what start-up left behind is collected
			if l.run > 0 {
				if _, err := measure(t, l, scenarios["single"]); err != nil {
					return err
				}
			}
			u, err := readUsage(t.process.PID())
			if err != nil {
				return err
			}
			peak, err := peakRSS(t.process.PID())
			s.report.atMost(limit, " MiB", "RSS, "+name, []float64{float64(u.rss) / mib},
				fmt.Sprintf("peak %.1f", float64(peak)/mib))
			return err
		}, settings...)
	}
	onRedis := []string{"BACKEND_TYPE=kvstore", "KVSTORE_URL=" + s.redis.Addr()}
	for _, r := range []struct {
		name     string
		limit    float64
		load     load
		settings []string
	}{
		{"idle", 20, load{}, nil},
		{"full load", 48, single, nil},
		{"full load, Redis", 48, single, onRedis},
		{"idle" + libraryServer, 25, load{}, []string{"GRPC_SERVER=grpc-go"}},
		{"full load" + libraryServer, 96, single, []string{"GRPC_SERVER=grpc-go"}},
	} {
		if err := rss(r.name, r.limit, ruleText(0, 1), r.load, r.settings...); err != nil {
			return err
		}
	}
	if err := rss("100k rules", 150, ruleText(100_000, 1), single); err != nil {
		return err
	}
	keys := single
	keys.traffic, keys.calls, keys.run = grpcTraffic{scenario: scenarios["fill"], streams: 64}, scenarios["fill"].keys,
		time.Minute
	return rss("1M live keys", 200, ruleText(0, 1), keys, "MEMORY_MAX_KEYS=2000000")
}

// binary measures the program file.
func (s *suite) binary(context.Context) error {
	file, err := os.Stat(s.testbed.daemon)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(s.testbed.daemon)
	if err != nil {
		return err
	}
	s.report.atMost(25, " MB", "binary", []float64{float64(file.Size()) / 1e6})
	s.report.atMost(41, "", "modules linked", []float64{float64(len(info.Deps))})
	return nil
}

// peakRSS is the most memory a process ever held, bytes.
func peakRSS(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var kb int64
	_, after, found := bytes.Cut(status, []byte("VmHWM:"))
	if _, err := fmt.Sscan(string(after), &kb); !found || err != nil {
		return 0, fmt.Errorf("process %d has no VmHWM", pid)
	}
	return kb << 10, nil
}

// goBenchmarks runs the Go benchmarks of the packages, briefly, and prints their lines.
func (s *suite) goBenchmarks(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "Go benchmarks")
	args := []string{"test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "100ms", "./shared/..."}
	for _, daemon := range []string{"ratelimit", "auth"} {
		if s.asked(daemon) {
			args = append(args, "./"+daemon+"/...")
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.report.linef("")
	var last bytes.Buffer
	for lines := bufio.NewScanner(io.TeeReader(out, &last)); lines.Scan(); {
		name, figures, ok := strings.Cut(lines.Text(), "\t")
		switch {
		case ok && strings.HasPrefix(name, "Benchmark"):
			s.report.linef("  %-50s %s", strings.TrimSpace(name), figures)
		case strings.HasPrefix(name, "pkg: "):
			s.report.linef("%s", name)
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go benchmarks: %w\n%s%s", err, last.Bytes(), failed.Bytes())
	}
	return nil
}

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"

	"gatehouse/shared/localserver"
)

// sample is one round's measurement of one target under one load.
type sample struct {
	cpu      float64 // µs of the target for each call
	store    float64 // µs of the store behind it for each call
	rate     float64 // answered calls a second
	p50, p99 time.Duration
	max      time.Duration
	commands float64 // of the store for each call, or round trips to it
	wal      float64 // bytes of PostgreSQL's WAL for each call
}

// reading is what a target and the store behind it had used at one moment.
type reading struct {
	own, store    time.Duration
	commands, wal int64
}

// measured runs a load and reads usage at its beginning and at its end.
func (l load) measured(read func() (reading, error)) (*result, sample, error) {
	var marks []reading
	l.mark = func() error {
		m, err := read()
		marks = append(marks, m)
		return err
	}
	r, err := l.drive()
	if err != nil {
		return nil, none, err
	}
	s, before, after, answered := r.sample(), marks[0], marks[1], float64(r.answered())
	s.cpu = float64(after.own-before.own) / 1e3 / answered
	s.store = float64(after.store-before.store) / 1e3 / answered
	s.commands = float64(after.commands-before.commands) / answered
	s.wal = float64(after.wal-before.wal) / answered
	return r, s, nil
}

// measure is measured, but refuses a run with other answers than the load expects, whose values would mean nothing.
func (l load) measure(read func() (reading, error)) (sample, error) {
	r, s, err := l.measured(read)
	if err != nil {
		return none, err
	}
	// If all answers are to be over the limit, a few are OK until the counter reaches it; in an open loop a standstill
	// of the machine may fail some.
	unexpected := r.over
	if l.over {
		unexpected = r.ok
	}
	if unexpected > 100 || r.failed*100 > r.answered() {
		return none, fmt.Errorf("%d OK, %d OVER_LIMIT, %d failed (%s)", r.ok, r.over, r.failed, r.refusal)
	}
	return s, nil
}

// sample returns the figures that follow from the requests alone.
func (r *result) sample() sample {
	return sample{rate: r.perSecond(), p50: r.latency.quantile(.5), p99: r.latency.quantile(.99),
		max: r.latency.quantile(1)}
}

// read returns what a target of the rate limit daemon and its stores have used.
func (t *target) read() (m reading, err error) {
	u, err := readUsage(t.process.PID())
	m.own = u.cpu
	for _, server := range t.stores {
		u, err2 := readUsage(server.PID())
		n, err3 := processed(server)
		m.store, m.commands, err = m.store+u.cpu, m.commands+n, errors.Join(err, err2, err3)
	}
	return m, err
}

// none is the sample of a refused run: it has a place in the rounds but no figures.
var none = sample{cpu: math.NaN()}

// spread is the median, the lowest and the highest value of several rounds.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	v := slices.DeleteFunc(slices.Sorted(slices.Values(values)), math.IsNaN)
	if len(v) == 0 {
		return spread{}
	}
	return spread{median: (v[(len(v)-1)/2] + v[len(v)/2]) / 2, low: v[0], high: v[len(v)-1]}
}

// of returns a figure of each of a line's samples; NaN where a run was refused.
func (r *results) of(l line, f figure) (values []float64) {
	for _, s := range r.samples[l] {
		value := f.of(s)
		if math.IsNaN(s.cpu) {
			value = math.NaN()
		}
		values = append(values, value)
	}
	return values
}

// ratios divides round by round, since a disturbance of the machine affects both sides.
func ratios(of, by []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 && !math.IsNaN(of[i]) {
			values = append(values, of[i]/by[i])
		}
	}
	return values
}

// figure is one value of a sample: its column, and its name in a budget.
type figure struct {
	column, name string
	of           func(sample) float64
}

var (
	cpu      = figure{"CPU µs", "CPU", func(s sample) float64 { return s.cpu }}
	store    = figure{"store µs", "store", func(s sample) float64 { return s.store }}
	p99      = figure{"p99 µs", "p99", func(s sample) float64 { return float64(s.p99.Microseconds()) }}
	rate     = figure{"a second", "calls/s", func(s sample) float64 { return s.rate }}
	commands = figure{"commands", "", func(s sample) float64 { return s.commands }}
	wal      = figure{"WAL bytes", "WAL", func(s sample) float64 { return s.wal }}
	p50      = figure{"p50 µs", "p50", func(s sample) float64 { return float64(s.p50.Microseconds()) }}
	longest  = figure{"max µs", "", func(s sample) float64 { return float64(s.max.Microseconds()) }}
)

// measureRedis has redis-benchmark send INCRBYs to keys like the daemon's, 64 at a time, and reads the server's CPU
// time for each: the cost of the same work for Redis without any waste.
func (s *suite) measureRedis(ctx context.Context) error {
	program, err := localserver.Find("redis-benchmark")
	if err != nil {
		return err
	}
	commands := int(400_000 * min(1, s.time.Seconds()))
	_, port, _ := net.SplitHostPort(s.redis.Addr())
	before, err := readUsage(s.redis.PID())
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-h", "127.0.0.1", "-p", port, "-q",
		"-P", "64", "-c", "4", "-n", strconv.Itoa(commands), "-r", "10000",
		"INCRBY", "bench_api_key_k-__rand_int___1699920000", "1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	after, err := readUsage(s.redis.PID())
	if err != nil {
		return err
	}
	s.incrby = append(s.incrby, float64((after.cpu-before.cpu).Microseconds())/float64(commands))
	return nil
}

// carriedOut is Redis' count of all commands, or one of memcached's counts.
var carriedOut = regexp.MustCompile(`(?m)^(?:total_commands_processed:|` +
	`STAT (?:cmd_get|cmd_set|incr_hits|incr_misses|decr_hits|decr_misses) )(\d+)`)

// processed returns how many commands a Redis or memcached has executed since it started; a look-up of several keys in
// memcached counts once for each key.
func processed(server *localserver.Server) (sum int64, err error) {
	c, err := net.DialTimeout("tcp", server.Addr(), time.Second)
	if err != nil {
		return 0, fmt.Errorf("commands of a store: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(c, "INFO stats\r\nstats\r\nquit\r\n") // Redis knows the first, memcached the second
	page, err := io.ReadAll(c)
	counts := carriedOut.FindAllSubmatch(page, -1)
	if err == nil && counts == nil {
		err = fmt.Errorf("the store says nothing of its commands: %q", page)
	}
	for _, count := range counts {
		n, failed := strconv.ParseInt(string(count[1]), 10, 64)
		sum, err = sum+n, errors.Join(err, failed)
	}
	return sum, err
}

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

// sample has the figures of one row in one round.
type sample struct {
	cpu      float64 // CPU time of the target for each call, in µs
	store    float64 // CPU time of the store behind the target for each call, in µs
	rate     float64 // answered calls per second
	p50, p99 time.Duration
	max      time.Duration
	commands float64 // commands that the store has executed for each call, or round trips to it
	wal      float64 // bytes of PostgreSQL's WAL for each call
}

// reading is what a target and the store behind it had used, since they started, at the time of the reading.
type reading struct {
	own, store    time.Duration
	commands, wal int64
}

// measured runs a load and calls read at the beginning and at the end of the measured time. The sample has the
// differences between the two readings.
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

// measure does what the method measured does, for a load whose answers must all be as expected. If they are not, it
// returns an error, since the figures of the run would mean nothing.
func (l load) measure(read func() (reading, error)) (sample, error) {
	r, s, err := l.measured(read)
	if err != nil {
		return none, err
	}
	// If all answers should be OVER_LIMIT, a few are OK until the counter reaches its limit. In an open loop, a
	// standstill of the machine may make some requests fail.
	unexpected := r.over
	if l.over {
		unexpected = r.ok
	}
	if unexpected > 100 || r.failed*100 > r.answered() {
		return none, fmt.Errorf("%d OK, %d OVER_LIMIT, %d failed (%s)", r.ok, r.over, r.failed, r.refusal)
	}
	return s, nil
}

// sample returns a sample with the figures that follow from the requests alone, without CPU times.
func (r *result) sample() sample {
	return sample{rate: r.perSecond(), p50: r.latency.quantile(.5), p99: r.latency.quantile(.99),
		max: r.latency.quantile(1)}
}

// read returns what a ratelimit target and its stores have used up to now.
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

// none is the sample of a refused run. It takes the run's place among the rounds, but has no figures.
var none = sample{cpu: math.NaN()}

// spread has the median, the lowest and the highest of the values of several rounds.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	v := slices.DeleteFunc(slices.Sorted(slices.Values(values)), math.IsNaN)
	if len(v) == 0 {
		return spread{}
	}
	return spread{median: (v[(len(v)-1)/2] + v[len(v)/2]) / 2, low: v[0], high: v[len(v)-1]}
}

// of returns the values of a figure in all samples of a row; NaN for a refused run.
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

// ratios returns the quotients of[i] ÷ by[i], one for each round i. The values of one round belong together, because a
// disturbance of the machine affects both.
func ratios(of, by []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 && !math.IsNaN(of[i]) {
			values = append(values, of[i]/by[i])
		}
	}
	return values
}

// figure is one of the values in a sample, with the name of its column and its name in a budget.
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

// measureRedis makes redis-benchmark send INCRBY commands for keys like the daemon's, 64 at a time, and reads the CPU
// time that Redis uses for each command. This is what the daemon's work costs Redis at the least.
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

// carriedOut matches Redis' count of all commands, or one of memcached's counts.
var carriedOut = regexp.MustCompile(`(?m)^(?:total_commands_processed:|` +
	`STAT (?:cmd_get|cmd_set|incr_hits|incr_misses|decr_hits|decr_misses) )(\d+)`)

// processed returns the number of commands that a Redis or memcached has executed since it started. In memcached, a
// look-up of several keys counts once for each key.
func processed(server *localserver.Server) (sum int64, err error) {
	c, err := net.DialTimeout("tcp", server.Addr(), time.Second)
	if err != nil {
		return 0, fmt.Errorf("commands of a store: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(c, "INFO stats\r\nstats\r\nquit\r\n") // Redis understands the first line, memcached the second
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

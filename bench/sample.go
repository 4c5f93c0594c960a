//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// sample is one round's measurement of one target under one load.
type sample struct {
	cpu      float64 // µs of the target for each call
	store    float64 // µs of the store behind it for each call
	rate     float64 // answered calls a second
	p50, p99 time.Duration
	max      time.Duration
	commands float64 // of the store for each call
	wal      float64 // bytes of PostgreSQL for each call
}

// measure runs a load against a target and reads both processes' CPU time around it. It refuses a run with other
// answers than the scenario expects: its values would mean nothing.
func measure(t *target, l load, s scenario) (sample, error) {
	l.addr = t.addr
	if _, http := l.traffic.(httpTraffic); http {
		l.addr = t.envoy.addr
	}
	var own, store []usage
	var commands []int
	l.mark = func() error {
		u, err := readExact(t.process.PID())
		own = append(own, u)
		var all usage
		sum := 0
		for _, server := range t.stores {
			u, err2 := readExact(server.PID())
			n, err3 := processed(server)
			all.cpu, sum, err = all.cpu+u.cpu, sum+n, errors.Join(err, err2, err3)
		}
		store, commands = append(store, all), append(commands, sum)
		return err
	}
	r, err := l.drive()
	if err != nil {
		return sample{}, fmt.Errorf("%s, %s: %w", t.name, s.name, err)
	}
	// A few calls may be over while the counter gets there, and in an open loop a standstill of the
	// machine may cost some.
	unexpected := r.over
	if s.over && t.debug != "" {
		unexpected = r.ok
	}
	if unexpected > 100 || r.failed*100 > r.answered() {
		return sample{}, fmt.Errorf("%s, %s: %d OK, %d OVER_LIMIT, %d failed (%s)",
			t.name, s.name, r.ok, r.over, r.failed, r.refusal)
	}
	answered := float64(r.answered())
	perCall := func(marks []usage) float64 {
		return float64(marks[1].cpu-marks[0].cpu) / 1e3 / answered
	}
	measured := sample{
		cpu: perCall(own), rate: r.perSecond(),
		p50: r.latency.quantile(.5), p99: r.latency.quantile(.99), max: r.latency.max,
	}
	if len(t.stores) > 0 {
		measured.store, measured.commands = perCall(store), float64(commands[1]-commands[0])/answered
	}
	return measured, nil
}

// none is the sample of a run that was refused: it has its place in the rounds but no figures.
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

// of picks one figure of each round's sample; NaN where there is none.
func of(samples []sample, figure func(sample) float64) []float64 {
	var values []float64
	for _, s := range samples {
		value := figure(s)
		if math.IsNaN(s.cpu) {
			value = math.NaN()
		}
		values = append(values, value)
	}
	return values
}

// ratios divides round by round: what disturbs the machine for a while disturbs both sides.
func ratios(of, by []float64) []float64 {
	var values []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 && !math.IsNaN(of[i]) {
			values = append(values, of[i]/by[i])
		}
	}
	return values
}

// The figures that budgets are about.
func cpuOf(s sample) float64      { return s.cpu }
func storeOf(s sample) float64    { return s.store }
func rateOf(s sample) float64     { return s.rate }
func p50Of(s sample) float64      { return float64(s.p50.Microseconds()) }
func p99Of(s sample) float64      { return float64(s.p99.Microseconds()) }
func maxOf(s sample) float64      { return float64(s.max.Microseconds()) }
func commandsOf(s sample) float64 { return s.commands }
func walOf(s sample) float64      { return s.wal }

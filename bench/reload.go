//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const reloadRate = 5_000 // calls a second during the reloads

// reloadCase describes a set of rules that a daemon reloads again and again under load.
type reloadCase struct {
	name   string
	text   func(generation uint32) []byte
	rounds int
	apart  time.Duration // pause between two reloads

	// These are the budgets for a reload; 0 means none.
	took, slowest    float64 // in ms
	slowestBy, p99By float64 // as a multiple of the p99 between reloads
	peak             float64 // in MiB
}

// span is the time of one reload: from the signal to the first answer by the new rules.
type span struct{ from, to time.Time }

// reload measures how reloads affect calls: it compares the latency of calls during a reload with the latency between
// reloads.
func (s *suite) reload(ctx context.Context) error {
	for _, c := range []reloadCase{
		{name: "10k rules", text: func(generation uint32) []byte { return ruleText(10_000, generation) },
			rounds: 2*s.rounds + 1, apart: 700 * time.Millisecond, took: 100, slowestBy: 2},
		{name: "100k rules in flow style with é",
			text:   func(generation uint32) []byte { return flowRuleText(100_000, generation) },
			rounds: s.rounds + 2, apart: 2 * time.Second, took: 2000, slowest: 20, p99By: 2, peak: 300},
	} {
		if err := s.reloadUnderLoad(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// flowRuleText returns the same rules as ruleText, but writes the extra rules in a form that people might use: in
// YAML's flow style ({…}) over several lines, with text outside ASCII.
func flowRuleText(extra int, limit uint32) []byte {
	text := bytes.NewBuffer(ruleText(0, limit))
	for i := range extra {
		fmt.Fprintf(text,
			"  - {key: päth, value: '/v1/items/%07d',\n     rate_limit: {unit: hour, requests_per_unit: %d}}\n", i,
			limit)
	}
	return text.Bytes()
}

func (s *suite) reloadUnderLoad(ctx context.Context, c reloadCase) error {
	return s.fresh(ctx, "reload", c.text(1), func(t *target, _ time.Duration) error {
		// Make all texts in advance, because making them would use the load's CPU time.
		for generation := 2; generation < c.rounds+2; generation++ {
			if err := os.WriteFile(nextRules(t, generation), c.text(uint32(generation)), 0o644); err != nil {
				return err
			}
		}
		runtime.GC()
		answers := make([]answer, 0, 60*reloadRate)
		end := load{
			addr: t.addr, traffic: grpcTraffic{scenario: scenarios["single"], timeout: s.timeout}, conns: 4,
			rate: reloadRate, warm: 300 * time.Millisecond, each: func(a answer) { answers = append(answers, a) },
		}.background()
		spans, err := s.reloads(ctx, t, c)
		_, failed := end()
		used, unread := readUsage(t.process.PID())
		if err := errors.Join(err, failed, unread); err != nil {
			return err
		}
		s.reportReloads(c, answers, spans, float64(used.peak)/mib)
		return nil
	})
}

// nextRules returns the path of the file with a generation of rules. To reload, this file is renamed to the daemon's
// rules file.
func nextRules(t *target, generation int) string { return fmt.Sprintf("%s.%d", t.rules, generation) }

// reloads makes the daemon reload rules again and again, and returns the times of the reloads.
func (s *suite) reloads(ctx context.Context, t *target, c reloadCase) (spans []span, err error) {
	for generation := 2; generation < c.rounds+2; generation++ {
		time.Sleep(c.apart)
		if err := os.Rename(nextRules(t, generation), t.rules); err != nil {
			return nil, err
		}
		from := time.Now()
		if err := t.process.Signal(syscall.SIGHUP); err != nil {
			return nil, err
		}
		if err := s.testbed.retry(ctx, t, func(context.Context) error {
			time.Sleep(time.Millisecond) // pause between two attempts
			return decidesBy(t, generation)
		}); err != nil {
			return nil, err
		}
		spans = append(spans, span{from, time.Now()})
	}
	return spans, nil
}

// decidesBy returns an error unless the daemon decides by the given generation of rules. Each generation has its number
// as the limit of a rule.
func decidesBy(t *target, generation int) error {
	const request = `{"domain": "` + domain + `", "descriptors": [{"entries": [{"key": "generation", "value": "?"}]}]}`
	answer, err := http.Post("http://"+t.http+"/json", "application/json", strings.NewReader(request))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && !bytes.Contains(body, fmt.Appendf(nil, `"requestsPerUnit":%d,`, generation)) {
		err = fmt.Errorf("the answer is not by generation %d: %s", generation, body)
	}
	return err
}

func (s *suite) reportReloads(c reloadCase, answers []answer, spans []span, peak float64) {
	var calm latencies
	for _, a := range answers {
		if !within(a, spans, 50*time.Millisecond) {
			calm = append(calm, a.latency)
		}
	}
	p99 := calm.quantile(.99)
	var took, slowest, slowestBy, p99By []float64
	for _, sp := range spans {
		var meanwhile latencies
		for _, a := range answers {
			if within(a, []span{sp}, 0) {
				meanwhile = append(meanwhile, a.latency)
			}
		}
		took = append(took, milliseconds(sp.to.Sub(sp.from)))
		slowest = append(slowest, milliseconds(meanwhile.quantile(1)))
		slowestBy = append(slowestBy, float64(meanwhile.quantile(1))/float64(p99))
		p99By = append(p99By, float64(meanwhile.quantile(.99))/float64(p99))
	}
	note := fmt.Sprintf("calm: p99 %v, slowest %v", p99.Round(time.Microsecond), calm.quantile(1).Round(time.Microsecond))
	judge := func(limit float64, unit, name string, values []float64, notes ...string) {
		if limit > 0 {
			s.report.atMost(limit, unit, name, values, notes...)
		}
	}
	judge(c.took, " ms", "reload of "+c.name+" under load", took)
	judge(c.peak, " MiB", "RSS, peak, reload of "+c.name, []float64{peak})
	judge(c.slowest, " ms", "slowest call, reload of "+c.name, slowest, note)
	judge(c.slowestBy, " ×", "slowest call during a reload ÷ calm p99", slowestBy, note)
	judge(c.p99By, " ×", "p99 ÷ calm p99, reload of "+c.name, p99By, note)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// within reports whether a call was in flight during one of the reloads in spans, or began at most the given time after
// one.
func within(a answer, spans []span, after time.Duration) bool {
	for _, s := range spans {
		if a.at.After(s.from) && a.at.Add(-a.latency).Before(s.to.Add(after)) {
			return true
		}
	}
	return false
}

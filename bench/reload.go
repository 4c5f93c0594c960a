//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const reloadRate = 5_000 // calls a second meanwhile

// reloadCase is a set of rules that a daemon takes again and again under load.
type reloadCase struct {
	name   string
	text   func(generation uint32) []byte
	rounds int
	apart  time.Duration // calm between two reloads
	budget reloadBudget
}

// reloadBudget is what a reload may cost; 0 is not judged.
type reloadBudget struct {
	took      float64 // ms
	slowest   float64 // ms
	slowestBy float64 // times the calm p99
	p99By     float64 // times the calm p99
	peak      float64 // MiB
}

// span is the time in which one reload took place: from the signal to the first answer by new rules.
type span struct{ from, to time.Time }

// reload replaces rules by others while calls go on. What a reload costs its callers is compared with
// the calm between reloads.
func (s *suite) reload(ctx context.Context) error {
	for _, c := range []reloadCase{
		{
			"10k rules", func(generation uint32) []byte { return ruleText(10_000, generation) }, 2*s.rounds + 1,
			700 * time.Millisecond, reloadBudget{took: 100, slowestBy: 2},
		},
		{
			"100k rules in flow style with é",
			func(generation uint32) []byte { return flowRuleText(100_000, generation) }, s.rounds + 2, 2 * time.Second,
			reloadBudget{took: 2000, slowest: 20, p99By: 2, peak: 300},
		},
	} {
		if err := s.reloadUnderLoad(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// flowRuleText is ruleText with rules as people write them by hand: flow style that goes over lines and
// text outside ASCII.
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
		for generation := range c.rounds { // beforehand: making them would take the load's processor
			if err := os.WriteFile(c.next(t, uint32(generation+2)), c.text(uint32(generation+2)), 0o644); err != nil {
				return err
			}
		}
		runtime.GC()
		answers := make([]answer, 0, 60*reloadRate)
		ended := make(chan error, 1)
		enough := make(chan struct{})
		go func() {
			l := load{
				addr: t.addr, traffic: grpcTraffic{scenario: scenarios["single"], timeout: s.timeout}, conns: 4,
				rate: reloadRate,
				warm: 300 * time.Millisecond, run: time.Minute, stop: enough,
				each: func(a answer) { answers = append(answers, a) },
			}
			_, err := l.drive()
			ended <- err
		}()
		spans, err := s.reloads(ctx, t, c)
		close(enough)
		if err := errors.Join(err, <-ended); err != nil {
			return err
		}
		peak, err := peakRSS(t.process.PID())
		if err != nil {
			return err
		}
		s.reportReloads(c, answers, spans, float64(peak)/mib)
		return nil
	})
}

// next is the file of a generation before it is put in its place.
func (c *reloadCase) next(t *target, generation uint32) string {
	return fmt.Sprintf("%s.%d", t.rules, generation)
}

// reloads makes the daemon take new rules again and again.
func (s *suite) reloads(ctx context.Context, t *target, c reloadCase) ([]span, error) {
	connection, err := grpc.NewClient(t.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	probe := ratelimitv3.NewRateLimitServiceClient(connection)
	var spans []span
	for generation := uint32(2); len(spans) < c.rounds; generation++ {
		time.Sleep(c.apart)
		if err := os.Rename(c.next(t, generation), t.rules); err != nil {
			return nil, err
		}
		from := time.Now()
		if err := t.process.Signal(syscall.SIGHUP); err != nil {
			return nil, err
		}
		if err := awaitGeneration(ctx, probe, generation); err != nil {
			return nil, err
		}
		spans = append(spans, span{from, time.Now()})
	}
	return spans, nil
}

// awaitGeneration asks each millisecond until the limit in the answer is that of the new rules.
func awaitGeneration(ctx context.Context, probe ratelimitv3.RateLimitServiceClient, generation uint32) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request := &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{{
		Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "generation", Value: "?"}},
	}}}
	for {
		response, err := probe.ShouldRateLimit(ctx, request)
		if err != nil {
			return fmt.Errorf("reload to generation %d: %w", generation, err)
		}
		if response.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == generation {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *suite) reportReloads(c reloadCase, answers []answer, spans []span, peak float64) {
	var calm histogram
	for _, a := range answers {
		if !within(a, spans, 50*time.Millisecond) {
			calm.record(a.latency)
		}
	}
	p99 := calm.quantile(.99)
	var took, slowest, slowestBy, p99By []float64
	for _, sp := range spans {
		var meanwhile histogram
		for _, a := range answers {
			if within(a, []span{sp}, 0) {
				meanwhile.record(a.latency)
			}
		}
		took = append(took, milliseconds(sp.to.Sub(sp.from)))
		slowest = append(slowest, milliseconds(meanwhile.max))
		slowestBy = append(slowestBy, float64(meanwhile.max)/float64(p99))
		p99By = append(p99By, float64(meanwhile.quantile(.99))/float64(p99))
	}
	note := fmt.Sprintf("calm: p99 %v, slowest %v", p99.Round(time.Microsecond), calm.max.Round(time.Microsecond))
	judge := func(limit float64, unit, name string, values []float64, notes ...string) {
		if limit > 0 {
			s.report.atMost(limit, unit, name, values, notes...)
		}
	}
	judge(c.budget.took, " ms", "reload of "+c.name+" under load", took)
	judge(c.budget.peak, " MiB", "RSS, peak, reload of "+c.name, []float64{peak})
	judge(c.budget.slowest, " ms", "slowest call, reload of "+c.name, slowest, note)
	judge(c.budget.slowestBy, " ×", "slowest call during a reload ÷ calm p99", slowestBy, note)
	judge(c.budget.p99By, " ×", "p99 ÷ calm p99, reload of "+c.name, p99By, note)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// within says whether a call was under way during a reload or up to some time after it.
func within(a answer, spans []span, after time.Duration) bool {
	for _, s := range spans {
		if a.at.After(s.from) && a.at.Add(-a.latency).Before(s.to.Add(after)) {
			return true
		}
	}
	return false
}

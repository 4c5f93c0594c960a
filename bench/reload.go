//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	reloadRules = 10_000
	reloadRate  = 5_000 // calls a second meanwhile
)

// answer is when one answer of the background load came and how long it took.
type answer struct {
	at      time.Time
	latency time.Duration
}

// span is the time in which one reload took place: from the signal to the first answer by new rules.
type span struct{ from, to time.Time }

// reload replaces 10,000 rules by others while calls go on. What a reload costs its callers is
// compared with the calm between reloads.
func (s *suite) reload(ctx context.Context) error {
	return s.fresh(ctx, "reload", ruleText(reloadRules, 1), func(t *target, _ time.Duration) error {
		var answers []answer
		ended := make(chan error, 1)
		enough := make(chan struct{})
		go func() {
			l := load{
				addr: t.addr, scenario: scenarios["single"], conns: 4, rate: reloadRate, timeout: s.timeout,
				warm: 300 * time.Millisecond, run: time.Minute, stop: enough,
				each: func(at time.Time, latency time.Duration) { answers = append(answers, answer{at, latency}) },
			}
			_, err := l.drive()
			ended <- err
		}()
		spans, err := s.reloads(ctx, t, 2*s.rounds+1)
		close(enough)
		if err := errors.Join(err, <-ended); err != nil {
			return err
		}
		s.reportReloads(answers, spans)
		return nil
	})
}

// reloads makes the daemon take new rules again and again, 700 ms apart.
func (s *suite) reloads(ctx context.Context, t *target, rounds int) ([]span, error) {
	connection, err := grpc.NewClient(t.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	probe := ratelimitv3.NewRateLimitServiceClient(connection)
	var spans []span
	for generation := uint32(2); len(spans) < rounds; generation++ {
		time.Sleep(700 * time.Millisecond)
		next := t.rules + ".next"
		if err := os.WriteFile(next, ruleText(reloadRules, generation), 0o644); err != nil {
			return nil, err
		}
		if err := os.Rename(next, t.rules); err != nil {
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
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

func (s *suite) reportReloads(answers []answer, spans []span) {
	var took, slowest []float64
	var calm histogram
	for _, a := range answers {
		if !within(a, spans, 50*time.Millisecond) {
			calm.record(a.latency)
		}
	}
	p99 := calm.quantile(.99)
	for _, sp := range spans {
		took = append(took, float64(sp.to.Sub(sp.from).Microseconds())/1000)
		var longest time.Duration
		for _, a := range answers {
			if within(a, []span{sp}, 0) {
				longest = max(longest, a.latency)
			}
		}
		slowest = append(slowest, float64(longest)/float64(p99))
	}
	s.report.atMost(100, " ms", "reload of 10k rules under load", took)
	s.report.atMost(2, " ×", "slowest call during a reload ÷ calm p99", slowest,
		fmt.Sprintf("calm: p99 %v, slowest %v", p99.Round(time.Microsecond), calm.max.Round(time.Microsecond)))
}

// within says whether a call was under way during a reload or up to some time after it.
func within(a answer, spans []span, after time.Duration) bool {
	for _, s := range spans {
		if a.at.After(s.from) && a.at.Add(-a.latency).Before(s.to.Add(after)) {
			return true
		}
	}
	return false
}

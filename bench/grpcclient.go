//go:build linux

package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// clientTraffic makes calls as a Go program does, with grpc-go's client and the generated types. The client needs more
// CPU time than the server, so the measurement shows how the server serves such a client, not how fast it could be.
type clientTraffic struct{ calls grpcTraffic }

// drive runs a load with a goroutine for each call in flight. In an open loop each goroutine makes its share of the
// calls at Poisson-distributed times, which makes the times of all calls together Poisson-distributed, too.
func (t clientTraffic) drive(l load) (*result, error) {
	c := &clientLoad{runner: newRunner(l, 0), requests: clientRequests(t.calls.scenario), workers: l.conns * t.calls.streams}
	c.began = time.Now()
	var stubs []ratelimitv3.RateLimitServiceClient
	for range l.conns {
		connection, err := grpc.NewClient(l.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return &c.result, err
		}
		defer connection.Close()
		stubs = append(stubs, ratelimitv3.NewRateLimitServiceClient(connection))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for i := range c.workers {
		workers.Go(func() { c.work(ctx, stubs[i%len(stubs)], uint64(i)) })
	}
	err := c.measure()
	cancel()
	workers.Wait()
	if err == nil {
		err = c.result.check()
	}
	return &c.result, err
}

// clientLoad is a running load of clientTraffic. It uses its runner, which has no connections here, to count the
// answers; a mutex guards the counting.
type clientLoad struct {
	*runner
	requests []*ratelimitv3.RateLimitRequest
	workers  int
	mu       sync.Mutex
}

// clientRequests returns the requests of a scenario, so that they need not be made during the load.
func clientRequests(s scenario) []*ratelimitv3.RateLimitRequest {
	e, all := newEncoder(s), make([]*ratelimitv3.RateLimitRequest, 10_000)
	for i := range all {
		all[i] = new(ratelimitv3.RateLimitRequest)
		if err := proto.Unmarshal(e.next()[5:], all[i]); err != nil {
			panic(err) // cannot fail: the message is a constant of this program
		}
	}
	return all
}

// measure waits for the end of the warm-up, and then for the end of the measured time.
func (c *clientLoad) measure() error {
	time.Sleep(c.warm)
	if err := c.mark(); err != nil {
		return err
	}
	c.mu.Lock()
	c.measuring, c.from = true, c.now()
	c.mu.Unlock()
	time.Sleep(c.run)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining, c.result.elapsed = true, time.Duration(c.now()-c.from)
	return c.mark()
}

// work makes one call after the other until ctx ends.
func (c *clientLoad) work(ctx context.Context, stub ratelimitv3.RateLimitServiceClient, seed uint64) {
	random, due := rand.New(rand.NewPCG(seed, 1)), time.Now()
	for ctx.Err() == nil {
		if c.rate > 0 {
			due = due.Add(time.Duration(random.ExpFloat64() * float64(c.workers) / c.rate * 1e9))
			time.Sleep(time.Until(due))
		} else {
			due = time.Now()
		}
		answer, err := stub.ShouldRateLimit(ctx, c.requests[random.IntN(len(c.requests))])
		o, refusal := outcomeOK, ""
		if err != nil {
			o, refusal = outcomeFailed, err.Error()
		} else if answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
			o = outcomeOver
		}
		c.mu.Lock()
		c.ended(0, int64(due.Sub(c.began)), c.now(), o, refusal)
		c.mu.Unlock()
	}
}

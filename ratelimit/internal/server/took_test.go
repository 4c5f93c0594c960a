package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// slowStore takes 30 ms of a clock of the test's.
type slowStore struct {
	*memory.Store
	now *time.Time
	err error
}

func (s *slowStore) Add(ctx context.Context, r *counter.Request) error {
	*s.now = s.now.Add(30 * time.Millisecond)
	if s.err != nil {
		return s.err
	}
	return s.Store.Add(ctx, r)
}

// The response time of a call is its own: from its arrival, reading it included. That of the store is the store's
// alone, and only of requests that need it.
func TestResponseTimes(t *testing.T) {
	f := func(descriptors string, storeErr error, want map[string]time.Duration) {
		t.Helper()
		now := time.Unix(exampleNow, 0)
		var mu sync.Mutex
		got := map[string]time.Duration{}
		registry := stats.NewRegistry(stats.Options{})
		registry.OnTime(func(s stats.Series, d time.Duration, _ float64) { mu.Lock(); got[s.Name] = d; mu.Unlock() })
		rules, _, err := rulefile.Load(t.Context(), []rulefile.File{{Name: "d.yaml",
			Text: []byte("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]")}},
			limits.Options{Stats: registry})
		must.Succeed(t, err)
		s := service.New(service.Options{
			Store: &slowStore{memory.New(memory.Options{}), &now, storeErr}, Stats: registry,
			Caps: service.Caps{Descriptors: 9, Entries: 9, TextBytes: 99}, Clock: func() time.Time { return now },
		})
		s.SetRules(rules)
		d := &decisions{
			service: s, log: discard, panics: registry.Counter("panics"),
			requests: registry.Counter("requests"), took: registry.Timer("call"),
		}
		wire, err := proto.Marshal(req("d", descriptors))
		must.Succeed(t, err)
		decode := func(x any) error {
			now = now.Add(5 * time.Millisecond) // a message that takes long to read
			return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, x)
		}
		if _, err := shouldRateLimit(d, t.Context(), decode, nil); (err != nil) != (storeErr != nil) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); registry.Run(ctx, nil, time.Hour) }()
		defer func() { cancel(); <-done }()
		await.True(t, fmt.Sprintf("%s takes %v", descriptors, want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return maps.Equal(got, want)
		}, func() string { return fmt.Sprint(got) })
	}
	f("(k,1)", nil, map[string]time.Duration{"call": 35 * time.Millisecond,
		"ratelimit.store.response_time": 30 * time.Millisecond})
	f("(k,1)", errors.New("down"),
		map[string]time.Duration{"call": 35 * time.Millisecond, "ratelimit.store.response_time": 30 * time.Millisecond})
	f("(nothing,1)", nil, map[string]time.Duration{"call": 5 * time.Millisecond})
}

package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

// BenchmarkCall is all that a decision costs besides grpc-go, on the in-process store: reading the request,
// deciding, encoding the answer, with timers on, for bench's scenarios of these names.
func BenchmarkCall(b *testing.B) {
	const plenty = "rate_limit: {unit: day, requests_per_unit: 4000000000}"
	text := "domain: d\ndescriptors:\n" +
		"- {key: api_key, " + plenty + "}\n" +
		"- {key: tenant, descriptors: [{key: route, " + plenty + ", descriptors: [{key: method, " + plenty + "}]}]}\n" +
		"- {key: remote_address, descriptors: [{key: route, " + plenty + "}]}\n" +
		"- {key: user, descriptors: [{key: plan, value: gold, descriptors: [{key: region, " + plenty + "}]}]}\n"
	registry := stats.NewRegistry(stats.Options{})
	registry.OnTime(func(stats.Series, time.Duration, float64) {})
	rules, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "bench.yaml", Text: []byte(text)}},
		limits.Options{Settings: limits.Settings{NearRatio: 0.8}, Stats: registry})
	must.Succeed(b, err)
	s := service.New(service.Options{
		Store: memory.New(memory.Options{}), Stats: registry,
		Caps: service.Caps{Descriptors: 256, Entries: 64, TextBytes: 64 << 10},
	})
	s.SetRules(rules)
	d := &decisions{
		service: s, log: discard, panics: registry.Counter("panics"),
		requests: registry.Counter("requests"), took: registry.Timer("took"),
	}
	c := newCodec()
	for _, scenario := range []struct{ name, request string }{
		{"unmatched", "(nobody,key-%[1]d)"},
		{"single", "(api_key,key-%[1]d)"},
		{"multi", "(tenant,t-%[1]d)(route,/v1/orders)|(tenant,t-%[1]d)(route,/v1/orders)(method,POST)|" +
			"(remote_address,10.%[1]d)(route,/v1/orders)|(user,u-%[1]d)(plan,gold)(region,eu-west)"},
	} {
		b.Run(scenario.name, func(b *testing.B) {
			var wires []mem.BufferSlice
			for i := range 1000 {
				wire, err := proto.Marshal(req("d", fmt.Sprintf(scenario.request, i)))
				must.Succeed(b, err)
				wires = append(wires, mem.BufferSlice{mem.SliceBuffer(wire)})
			}
			ctx := context.Background()
			var data mem.BufferSlice
			decode := func(x any) error { return c.Unmarshal(data, x) }
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				data = wires[i%len(wires)]
				x, err := shouldRateLimit(d, ctx, decode, nil)
				must.Succeed(b, err)
				out, err := c.Marshal(x)
				must.Succeed(b, err)
				out.Free()
			}
		})
	}
}

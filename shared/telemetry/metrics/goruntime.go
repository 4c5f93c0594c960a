package metrics

import (
	"context"
	"runtime/metrics"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// GoRuntime adds metrics of the Go runtime, under the names of OpenTelemetry's semantic conventions. They are read once
// for each export or scrape, without stopping the program.
func (m *Metrics) GoRuntime() error {
	f := Instruments{Meter: m.Meter("go runtime")}
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/goal:bytes"},
		{Name: "/sched/goroutines:goroutines"}, {Name: "/sched/gomaxprocs:threads"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	used := f.Level("go.memory.used", "By", "Memory that the Go runtime holds.")
	goal := f.Level("go.memory.gc.goal", "By", "Size of the heap at which the next collection begins.")
	goroutines := f.Level("go.goroutine.count", "{goroutine}", "Goroutines that live.")
	limit := f.Level("go.processor.limit", "{thread}", "Threads that may run Go code at once.")
	bytes := f.Count("go.memory.allocated", "By", "Memory allocated on the heap since the start.")
	objects := f.Count("go.memory.allocations", "{allocation}", "Objects allocated on the heap since the start.")
	cycles := f.Count("go.memory.gc.cycles", "{gc_cycle}", "Collections since the start.")
	stack := metric.WithAttributeSet(attribute.NewSet(attribute.String("go.memory.type", "stack")))
	other := metric.WithAttributeSet(attribute.NewSet(attribute.String("go.memory.type", "other")))
	return f.Observe(func(_ context.Context, o metric.Observer) error {
		now := make([]metrics.Sample, len(samples))
		copy(now, samples)
		metrics.Read(now)
		v := func(i int) int64 { return int64(now[i].Value.Uint64()) }
		o.ObserveInt64(used, v(2), stack)
		o.ObserveInt64(used, v(0)-v(1)-v(2), other)
		o.ObserveInt64(bytes, v(3))
		o.ObserveInt64(objects, v(4))
		o.ObserveInt64(goal, v(5))
		o.ObserveInt64(goroutines, v(6))
		o.ObserveInt64(limit, v(7))
		o.ObserveInt64(cycles, v(8))
		return nil
	})
}

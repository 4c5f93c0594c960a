package metrics

import (
	"context"
	"fmt"
	"runtime/metrics"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// GoRuntime adds metrics of the Go runtime, under the names of OpenTelemetry's semantic conventions.
// They are read once for each export or scrape, without stopping the program.
func (m *Metrics) GoRuntime() error {
	meter := m.Meter("go runtime")
	var failed error
	note := func(err error) {
		if failed == nil && err != nil {
			failed = fmt.Errorf("metrics: %w", err)
		}
	}
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/goal:bytes"},
		{Name: "/sched/goroutines:goroutines"}, {Name: "/sched/gomaxprocs:threads"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	gauge := func(name, unit, help string) metric.Int64ObservableUpDownCounter {
		g, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		note(err)
		return g
	}
	counter := func(name, unit, help string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		note(err)
		return c
	}
	used := gauge("go.memory.used", "By", "Memory that the Go runtime holds.")
	goal := gauge("go.memory.gc.goal", "By", "Size of the heap at which the next collection begins.")
	goroutines := gauge("go.goroutine.count", "{goroutine}", "Goroutines that live.")
	limit := gauge("go.processor.limit", "{thread}", "Threads that may run Go code at once.")
	bytes := counter("go.memory.allocated", "By", "Memory allocated on the heap since the start.")
	objects := counter("go.memory.allocations", "{allocation}", "Objects allocated on the heap since the start.")
	cycles := counter("go.memory.gc.cycles", "{gc_cycle}", "Collections since the start.")
	if failed != nil {
		return failed
	}
	stack := metric.WithAttributeSet(attribute.NewSet(attribute.String("go.memory.type", "stack")))
	other := metric.WithAttributeSet(attribute.NewSet(attribute.String("go.memory.type", "other")))
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
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
	}, used, goal, goroutines, limit, bytes, objects, cycles)
	note(err)
	return failed
}

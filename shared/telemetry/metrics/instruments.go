package metrics

import (
	"cmp"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// Instruments makes instruments whose values are read at each export or scrape. It keeps the first error for Observe.
type Instruments struct {
	Meter metric.Meter
	all   []metric.Observable
	err   error
}

func (f *Instruments) add(i metric.Observable, err error) {
	f.all, f.err = append(f.all, i), cmp.Or(f.err, err)
}

// Observe registers the callback read, which reports the values of all instruments that were made. It returns the first
// error.
func (f *Instruments) Observe(read metric.Callback) error {
	if f.err == nil {
		_, f.err = f.Meter.RegisterCallback(read, f.all...)
	}
	if f.err != nil {
		return fmt.Errorf("metrics: %w", f.err)
	}
	return nil
}

// Level makes an instrument for a value that goes up and down.
func (f *Instruments) Level(name, unit, help string) metric.Int64Observable {
	i, err := f.Meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	f.add(i, err)
	return i
}

// Count makes an instrument for a value that only goes up.
func (f *Instruments) Count(name, unit, help string) metric.Int64Observable {
	i, err := f.Meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	f.add(i, err)
	return i
}

// Age makes an instrument for a duration in seconds.
func (f *Instruments) Age(name, help string) metric.Float64Observable {
	i, err := f.Meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(help))
	f.add(i, err)
	return i
}

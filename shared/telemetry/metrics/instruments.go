package metrics

import (
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// Instruments makes instruments that are observed when they are read, and keeps the first error.
type Instruments struct {
	Meter metric.Meter
	Err   error
}

func (f *Instruments) note(err error) {
	if f.Err == nil && err != nil {
		f.Err = fmt.Errorf("metrics: %w", err)
	}
}

// Level makes an instrument for a value that goes up and down.
func (f *Instruments) Level(name, unit, help string) metric.Int64Observable {
	i, err := f.Meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	f.note(err)
	return i
}

// Count makes an instrument for a value that only goes up.
func (f *Instruments) Count(name, unit, help string) metric.Int64Observable {
	i, err := f.Meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	f.note(err)
	return i
}

// Age makes an instrument for a time in seconds.
func (f *Instruments) Age(name, help string) metric.Float64Observable {
	i, err := f.Meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(help))
	f.note(err)
	return i
}

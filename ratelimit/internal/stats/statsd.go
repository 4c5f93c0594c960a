package stats

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/cactus/go-statsd-client/v5/statsd"
)

// transport carries statsd lines. It is a statsd.Sender whose Send never waits.
type transport interface {
	statsd.Sender
	ready() bool
	flush()
	awake(ctx context.Context) bool
	drain(ctx context.Context) error // sends what is queued, then closes
}

// Statsd writes plain statsd lines: `name:1|c`, `name:1|g`, `name:0.25|ms`, with
// EXTRA_TAGS inside the name.
type Statsd struct {
	out   transport
	lines statsd.StatSender
}

// NewStatsdTCP sends over one connection to addr, made in the background and again after it breaks. A statsd that is
// unavailable or does not read costs nothing but the kept differences.
func NewStatsdTCP(addr string, log *slog.Logger) *Statsd { return newStatsd(newTCP(addr, log)) }

// NewStatsdUDP sends datagrams of at most 1432 bytes to addr. Their arrival is not confirmed.
func NewStatsdUDP(addr string, log *slog.Logger) *Statsd { return newStatsd(newUDP(addr, log)) }

func newStatsd(out transport) *Statsd {
	client, err := statsd.NewClientWithSender(out, "", 0)
	if err != nil {
		panic(err) // only for a nil sender
	}
	// The samples are already chosen; the client must not sample again.
	lines := client.NewSubStatter("")
	lines.SetSamplerFunc(func(float32) bool { return true })
	return &Statsd{out: out, lines: lines}
}

// Ready implements Sink.
func (s *Statsd) Ready() bool { return s.out.ready() }

// Count implements Sink.
func (s *Statsd) Count(m Series, delta uint64) bool {
	return s.lines.Inc(m.Plain(), int64(min(delta, math.MaxInt64)), 1) == nil
}

// Gauge implements Sink. A statsd takes a leading minus as a decrease, so the gauge is set to 0 first.
func (s *Statsd) Gauge(m Series, value int64) bool {
	if value < 0 && s.lines.Gauge(m.Plain(), 0, 1) != nil {
		return false
	}
	return s.lines.Gauge(m.Plain(), value, 1) == nil
}

// Time implements Sink.
func (s *Statsd) Time(m Series, d time.Duration, rate float64) bool {
	return s.lines.Raw(m.Plain(), milliseconds(d)+"|ms", float32(rate)) == nil
}

// Flush implements Sink.
func (s *Statsd) Flush() { s.out.flush() }

// Awake implements Sink.
func (s *Statsd) Awake(ctx context.Context) bool { return s.out.awake(ctx) }

// Close implements Sink.
func (s *Statsd) Close(ctx context.Context) error { return s.out.drain(ctx) }

// milliseconds writes whole values without a decimal point and other values with six decimals.
func milliseconds(d time.Duration) string {
	if d%time.Millisecond == 0 {
		return strconv.FormatInt(d.Milliseconds(), 10)
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 6, 64)
}

package stats

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"time"
)

// Lines is a Sink that writes each value as a line of JSON, for USE_STATSD=false.
type Lines struct {
	now    func() time.Time
	buf    []byte      // only the flusher uses it
	full   chan []byte // buffers on their way to the writing goroutine
	empty  chan []byte // buffers on their way back
	closed chan struct{}
}

// lineBuffers is the number of flushes that may be queued for the writing goroutine.
const lineBuffers = 4

// NewLines returns a Lines that writes to w. A separate goroutine does the writing, so that a pipe that is not read
// blocks neither the flusher nor the shutdown. While w has not taken the last few flushes, Ready returns false.
func NewLines(w io.Writer) *Lines {
	l := &Lines{now: time.Now, full: make(chan []byte, lineBuffers), empty: make(chan []byte, lineBuffers),
		closed: make(chan struct{})}
	for range lineBuffers {
		l.empty <- nil
	}
	go func() {
		defer close(l.closed)
		for b := range l.full {
			w.Write(b)
			l.empty <- b[:0]
		}
	}()
	return l
}

// Ready implements Sink.
func (l *Lines) Ready() bool { return l.buf != nil || len(l.empty) > 0 }

// Awake implements Sink.
func (l *Lines) Awake(context.Context) bool { return l.Ready() }

// Count implements Sink.
func (l *Lines) Count(s Series, delta uint64) bool {
	return l.line(KindCounter, s, strconv.FormatUint(delta, 10)+".000000", 1)
}

// Gauge implements Sink.
func (l *Lines) Gauge(s Series, value int64) bool {
	return l.line(KindGauge, s, strconv.FormatInt(value, 10)+".000000", 1)
}

// Time implements Sink. A value that was sampled has its rate as an additional member of the JSON object.
func (l *Lines) Time(s Series, d time.Duration, rate float64) bool {
	return l.line(KindTimer, s, milliseconds(d), rate)
}

func (l *Lines) line(k Kind, s Series, value string, rate float64) bool {
	if l.buf == nil {
		select {
		case b := <-l.empty:
			l.buf = b
		default:
			return false
		}
	}
	now := l.now()
	b := append(l.buf, `{"level":"debug","ts":`...)
	b = strconv.AppendFloat(b, float64(now.UnixMicro())/1e6, 'f', 6, 64)
	b = append(b, `,"logger":"stats","msg":"flushing `+k.String()+`","json":{"name":`...)
	name, err := json.Marshal(s.Plain())
	if err != nil {
		return true // not reached: any string can be encoded as JSON
	}
	b = append(b, name...)
	b = append(b, `,"type":"`+k.String()+`","value":"`+value...)
	b = append(b, '"')
	if rate < 1 {
		b = append(b, `,"rate":"`...)
		b = strconv.AppendFloat(b, rate, 'f', 6, 64)
		b = append(b, '"')
	}
	l.buf = append(b, "}}\n"...)
	return true
}

// Flush implements Sink.
func (l *Lines) Flush() {
	if len(l.buf) > 0 {
		l.full <- l.buf // does not block: full has room for all buffers
		l.buf = nil
	}
}

// Close implements Sink. If w still blocks when ctx ends, the writing goroutine is abandoned.
func (l *Lines) Close(ctx context.Context) error {
	l.Flush()
	close(l.full)
	select {
	case <-l.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

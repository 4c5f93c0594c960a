package redis

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"unsafe"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
)

// meterOp has the fields that only an op of kind opMeter needs: for one call of a script, with the hits on one sliding
// window or token bucket. Its memory is reused by later batches.
type meterOp struct {
	meter  counter.Meter
	jitter int64 // in ms
	runs   []meterRun
	// state is the counter's state at the server's time. replay begins with the state before the script, and advances
	// it by each hit.
	state counter.State
}

// meterRun is a run of equal hits, or of equal refunds, in the form of the script's arguments.
type meterRun struct {
	count int64
	kind  string
	x, y  int64 // two numbers, whose meaning depends on kind: see slidingLua and bucketLua
}

// These are the kinds of runs, as the scripts name them: hits, refunds (hits given back), and undone hits.
const (
	runHits   = "h"
	runRefund = "g"
	runUndo   = "u"
)

// maxRefund is the most hits that one refund gives back. No counter has as many.
const maxRefund = 1 << 32

func (h *callHit) isMeter() bool { return h.Algorithm != counter.FixedWindow }

// addMeter adds a hit on a sliding window or a token bucket to the op of its key. A hit whose limit has other numbers
// than the op's needs another op.
func (b *batch) addMeter(c *call, h *callHit) {
	key := unsafe.String(unsafe.SliceData(h.Key), len(h.Key))
	at := b.index.find(h.hash, func(op int32) bool { return b.ops[op].key == key })
	if *at == 0 || !b.takes(&b.ops[*at-1], h.Meter) {
		o := b.add(*at)
		o.kind, o.hash, o.key, o.first, o.now = opMeter, h.hash, key, h, c.now
		o.meter = b.newMeterOp(h.Meter)
		*at = int32(len(b.ops))
	}
	h.op = *at - 1
	o := &b.ops[h.op]
	o.asking = o.asking || h.asking
	b.meters[o.meter].add(h)
}

// takes reports whether the op can include hits with the numbers in meter. For a sliding window, the limits may differ,
// since each run has a limit of its own.
func (b *batch) takes(o *op, meter counter.Meter) bool {
	if o.kind != opMeter {
		return false
	}
	of := b.meters[o.meter].meter
	if meter.Algorithm == counter.SlidingWindow {
		return of.Algorithm == counter.SlidingWindow && of.Window == meter.Window
	}
	return of == meter
}

// newMeterOp adds a meterOp to the batch, in memory of an earlier batch if possible, and returns its index.
func (b *batch) newMeterOp(meter counter.Meter) int32 {
	if len(b.meters) < cap(b.meters) {
		b.meters = b.meters[:len(b.meters)+1]
	} else {
		b.meters = append(b.meters, meterOp{})
	}
	m := &b.meters[len(b.meters)-1]
	m.meter, m.runs, m.state = meter, m.runs[:0], counter.State{}
	m.jitter = jitterOf(meter, b.jitter)
	return int32(len(b.meters) - 1)
}

// jitterOf returns a random time in ms by which the key of a sliding window lives longer than its window:
// docs/windows.md#jitter. The parameter most is the setting JitterMax, in seconds. Keys of token buckets need no
// jitter, since they expire at different times anyway.
func jitterOf(m counter.Meter, most int64) int64 {
	if j := min(most, m.Window/10); j > 0 && m.Algorithm == counter.SlidingWindow {
		return rand.Int64N(j * 1000)
	}
	return 0
}

// add adds a hit to the runs. It leaves out looks, and hits that can never pass, since these hits change nothing.
func (m *meterOp) add(h *callHit) {
	run := meterRun{count: 1, kind: runHits, x: h.n, y: int64(h.Limit)}
	most := h.Capacity()
	switch {
	case h.n == 0 && !h.BringDown:
		return
	case h.n == 0: // a run of 0 hits: the script only corrects a state that is ahead of its clock
		run.count, run.x = 0, 1
	case h.Refund:
		run.kind, run.x, run.y = runRefund, min(h.n, maxRefund), 0
		if h.Undo {
			run.kind, run.y = runUndo, h.State.At
		}
	case uint64(h.n) > most:
		return
	}
	if h.Algorithm == counter.TokenBucket {
		q, t := h.Take(min(uint64(run.x), most))
		run.x, run.y = q, int64(t)
		if run.kind == runUndo {
			run.kind = runRefund
		}
	}
	if last := len(m.runs) - 1; last >= 0 {
		of := m.runs[last]
		of.count = run.count
		if of == run && run.count > 0 {
			m.runs[last].count++
			return
		}
	}
	m.runs = append(m.runs, run)
}

// pick returns the script or, if there is a clock that replaces the server's, the variant that takes the time as an
// argument.
func (s meterScript) pick(clock func() int64) *script {
	if clock != nil {
		return s.timed
	}
	return s.script
}

// evalMeter returns the command that calls the op's script.
func (l *redisLink) evalMeter(b *batch, o *op) rueidis.Completed {
	m, s := &b.meters[o.meter], slidingScript
	if m.meter.Algorithm == counter.TokenBucket {
		s = bucketScript
	}
	how, script := l.call(b, s.pick(l.access.clock))
	c := l.client.B().Arbitrary(how, script, "1", o.key)
	if m.meter.Algorithm == counter.TokenBucket {
		q, t := m.meter.Take(m.meter.Capacity())
		c = c.Args(l.decimal(q), l.decimal(int64(t)), l.decimal(int64(max(1, m.meter.Limit))))
	} else {
		c = c.Args(l.decimal(m.meter.Window), l.decimal(m.jitter))
	}
	for _, r := range m.runs {
		c = c.Args(l.decimal(r.count), r.kind, l.decimal(r.x), l.decimal(r.y))
	}
	if l.access.clock != nil {
		c = c.Args(l.decimal(l.access.clock()))
	}
	return c.Build()
}

// errNonsense is the error for a reply that cannot come from the store's scripts.
var errNonsense = fmt.Errorf("%w: a script answered nonsense", counter.ErrUnavailable)

// read reads the reply of the script: the server's time, and the counter's state before the runs.
func (m *meterOp) read(r rueidis.RedisResult) error {
	fields, err := r.ToArray()
	if err != nil {
		return err
	}
	var n [4]int64
	want := 4
	if m.meter.Algorithm == counter.TokenBucket {
		want = 3
	}
	if len(fields) != want {
		return errNonsense
	}
	for i := range fields {
		if n[i], err = fields[i].ToInt64(); err != nil {
			return err
		}
	}
	m.state, err = stateOf(m.meter.Algorithm, n[0], n[1:want])
	return err
}

// stateOf returns the state that a script has returned as numbers; now is the server's time in µs.
func stateOf(a counter.Algorithm, now int64, n []int64) (s counter.State, err error) {
	for i, v := range n {
		if v < 0 || i > 0 && v > math.MaxUint32 {
			return s, errNonsense
		}
	}
	if s.Now, s.At = now, n[0]; now <= 0 {
		return s, errNonsense
	}
	if a == counter.TokenBucket {
		s.Rest = uint32(n[1])
	} else {
		s.Current, s.Previous = uint32(n[1]), uint32(n[2])
	}
	return s, nil
}

// replay works out the answer to each hit on a sliding window or a token bucket, from the state before the script and
// in the order in which the script counted the hits. Hits whose callers have stopped waiting are replayed too, since
// the script has counted them.
func (b *batch) replay() {
	for _, c := range b.calls {
		if c.stop == counter.StopAll {
			continue
		}
		for i := range c.hits {
			h := &c.hits[i]
			if !h.isMeter() || h.Delete {
				continue
			}
			if o := &b.ops[h.op]; o.err == nil && o.notExecuted == nil {
				m := &b.meters[o.meter]
				h.Judge(&m.state)
				m.state = h.State
			}
		}
	}
}

// meterStopArgs returns the arguments (ARGV) of stopMetersLua, the stop script for requests that have sliding windows
// or token buckets.
func (o *op) meterStopArgs(jitter int64) []string {
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	args := make([]string, 0, 9*len(o.stop.hits)+1)
	for i := range o.stop.hits {
		h := &o.stop.hits[i]
		kind := h.stopKind()
		switch h.Algorithm {
		case counter.SlidingWindow:
			args = append(args, "r", kind, decimal(h.n), decimal(int64(h.Capacity())), decimal(h.Window),
				decimal(jitterOf(h.Meter, jitter)), "0", "0")
		case counter.TokenBucket:
			most := h.Capacity()
			q, t := h.Take(min(uint64(h.n), most))
			full, rest := h.Take(most)
			size := "1"
			switch {
			case h.n == 0:
				size = "0"
			case uint64(h.n) > most:
				size = "2"
			}
			args = append(args, "b", kind, decimal(q), decimal(int64(t)), decimal(int64(max(1, h.Limit))),
				decimal(full), decimal(int64(rest)), size)
		default:
			args = append(args, "f", kind, decimal(h.n), strconv.FormatUint(h.Limit, 10), decimal(h.prefix), "0",
				"0", "0")
		}
	}
	return args
}

// parseState parses a state that a stop script has returned as text; now is the server's time in µs.
func parseState(a counter.Algorithm, now int64, text string) (s counter.State, err error) {
	var n [3]int64
	want := 3
	if a == counter.TokenBucket {
		want = 2
	}
	for i := range want {
		word, rest, _ := strings.Cut(text, " ")
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return s, errNonsense
		}
		text = rest
	}
	if text != "" {
		return s, errNonsense
	}
	return stateOf(a, now, n[:want])
}

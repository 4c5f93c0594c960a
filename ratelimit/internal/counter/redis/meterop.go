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

// meterOp has what only an opMeter needs: one call of a script for the hits on a sliding window or a token bucket.
// Later batches reuse it.
type meterOp struct {
	meter  counter.Meter
	jitter int64 // in ms
	runs   []meterRun
	// state is the counter at the instant of the answer, before the next hit that replay judges.
	state counter.State
}

// meterRun is a run of equal hits, or of equal refunds.
type meterRun struct {
	count int64
	kind  string
	x, y  int64 // two numbers for the script, depending on kind
}

// Kinds of runs.
const (
	runHits   = "h"
	runRefund = "g"
	runUndo   = "u"
)

// maxRefund is the most that one refund gives back: more than a window ever has.
const maxRefund = 1 << 32

func (h *callHit) isMeter() bool { return h.Algorithm != counter.FixedWindow }

// addMeter adds a hit on a sliding window or a token bucket to the call of its key's script. Hits with another meter
// get a later call of their own.
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

// takes reports whether the command can include hits with the given meter. On a sliding window each run has its own
// limit.
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

// newMeterOp returns the index of one more meterOp, which reuses the memory of a former one.
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

// jitterOf returns a random time that a sliding window's key lives longer than its window, in ms:
// docs/windows.md#jitter. Keys of token buckets expire at different times anyway.
func jitterOf(m counter.Meter, most int64) int64 {
	if j := min(most, m.Window/10); j > 0 && m.Algorithm == counter.SlidingWindow {
		return rand.Int64N(j * 1000)
	}
	return 0
}

// add appends a hit for the script, except hits that change nothing: looks, and hits that can never pass.
func (m *meterOp) add(h *callHit) {
	run := meterRun{count: 1, kind: runHits, x: h.n, y: int64(h.Limit)}
	most := h.Capacity()
	switch {
	case h.n == 0 && !h.BringDown:
		return
	case h.n == 0: // a run of no hits
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

// pick returns the script, or the variant that takes the instant as an argument.
func (s meterScript) pick(clock func() int64) *script {
	if clock != nil {
		return s.timed
	}
	return s.script
}

// evalMeter returns the call of the script.
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

// errNonsense is the error of an answer that none of our scripts gives.
var errNonsense = fmt.Errorf("%w: a script answered nonsense", counter.ErrUnavailable)

// read reads the answer: the instant, and the counter before the runs.
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

// stateOf makes a state of the numbers that a script returns.
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

// replay works out the outcome of each hit on a sliding window or a token bucket, in the order of the batch. Hits of
// callers that have left count too.
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

// meterStopArgs returns ARGV of the script for a request under counter.StopAll that has sliding windows or token
// buckets.
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

// parseState parses a state as a script formats it.
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

package observe

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"gatehouse/ratelimit/internal/rls"
)

// These constants bound the events that are queued for one listener.
const (
	maxQueued = 1024    // greatest number of events
	maxWaits  = 1 << 20 // greatest number of bytes
)

// Filter says which decisions a listener sees. The zero value of Domain, Key, Code or Unmatched accepts all decisions.
type Filter struct {
	Domain    string   // the request's domain
	Key       string   // a descriptor has an entry with this key
	Code      rls.Code // the code for the request as a whole
	Unmatched bool     // the configuration has no answer for one of the descriptors
	// Sample is the share of the accepted decisions to show, above 0 and at most 1.
	Sample float64
	// Rate is the greatest number of decisions to show in a second.
	Rate int
}

// takes reports whether the filter accepts a decision. It allocates nothing.
func (f *Filter) takes(d *Decision) bool {
	switch {
	case f.Domain != "" && f.Domain != d.Request.Domain,
		f.Code != rls.UnknownCode && f.Code != d.Response.Overall,
		f.Key != "" && !d.hasKey(f.Key),
		f.Unmatched && !d.hasUnmatched():
		return false
	}
	return f.Sample >= 1 || rand.Float64() < f.Sample
}

func (d *Decision) hasKey(key string) bool {
	return slices.ContainsFunc(d.Request.Descriptors, func(of rls.Descriptor) bool {
		return slices.ContainsFunc(of.Entries, func(e rls.Entry) bool { return e.Key == key })
	})
}

func (d *Decision) hasUnmatched() bool {
	for i := range d.Request.Descriptors {
		if d.forgotten(i) {
			return true
		}
	}
	return false
}

// Listener receives decisions as lines of JSON. Lines that the owner of the listener does not read in time are dropped.
type Listener struct {
	filter Filter
	rate   perSecond

	queue   chan []byte
	waits   atomic.Int64 // size of the lines in queue, in bytes
	dropped atomic.Uint64

	ended chan struct{}
	once  sync.Once
	close func()
}

// note queues a decision, if the filter accepts it. It drops the decision if there is no room.
func (l *Listener) note(d *Decision) {
	if !l.filter.takes(d) {
		return
	}
	if !l.rate.take(d.At.Unix(), uint32(l.filter.Rate)) || d.size() > maxEvent ||
		l.waits.Load() > maxWaits-maxEvent || len(l.queue) == cap(l.queue) {
		l.dropped.Add(1)
		return
	}
	line := d.event(l.filter.Sample).line()
	if line == nil || l.waits.Add(int64(len(line))) > maxWaits {
		l.waits.Add(-int64(len(line)))
		l.dropped.Add(1)
		return
	}
	select {
	case l.queue <- line:
	default: // another request has just taken the last place in the queue
		l.waits.Add(-int64(len(line)))
		l.dropped.Add(1)
	}
}

// Lines returns the channel of events. The caller must call Took with each line it receives.
func (l *Listener) Lines() <-chan []byte { return l.queue }

// Took returns to the queue the room that the given line has taken.
func (l *Listener) Took(line []byte) { l.waits.Add(-int64(len(line))) }

// Dropped returns the number of accepted events that were dropped since the previous call of Dropped: because there
// were more than Rate in a second, because they were too long, or because the queue had no room.
func (l *Listener) Dropped() uint64 {
	if l.dropped.Load() == 0 {
		return 0
	}
	return l.dropped.Swap(0)
}

// Ended returns a channel that is closed when the daemon stops.
func (l *Listener) Ended() <-chan struct{} { return l.ended }

func (l *Listener) end() { l.once.Do(func() { close(l.ended) }) }

// Close ends the tap.
func (l *Listener) Close() { l.close() }

// perSecond admits a limited number of events in each second of the clock. It never waits.
type perSecond struct {
	state atomic.Uint64 // the second in the upper half, its number of events in the lower
}

// outOfOrder is by how many seconds an event may be late, as decisions are while the store is slow.
const outOfOrder = 10

// take reports whether an event is one of the first events of its second, which is in Unix time; the parameter most is
// how many events a second may have. An event that is late by at most outOfOrder seconds counts for the latest second.
// If the clock goes back by more, the count starts again.
func (p *perSecond) take(second int64, most uint32) bool {
	for {
		before := p.state.Load()
		now, taken := uint32(second), uint32(before)
		if last := uint32(before >> 32); last-now <= outOfOrder { // the difference is 0 in the same second
			now = last
		} else {
			taken = 0
		}
		if taken >= most {
			return false
		}
		if p.state.CompareAndSwap(before, uint64(now)<<32|uint64(taken+1)) {
			return true
		}
	}
}

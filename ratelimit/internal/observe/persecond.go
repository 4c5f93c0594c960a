package observe

import "sync/atomic"

// perSecond admits a number of events in each second of the clock. It never waits.
type perSecond struct {
	state atomic.Uint64 // the second in the upper half, its number of events in the lower
}

// outOfOrder is how many seconds an event may be late: the store may have taken its time.
const outOfOrder = 10

// take reports whether an event of the given second, Unix time, is one of the first most events of the second. An event
// of an earlier second, within outOfOrder, counts for the latest second; a clock that went back further begins again.
func (p *perSecond) take(second int64, most uint32) bool {
	for {
		before := p.state.Load()
		now, taken := uint32(second), uint32(before)
		if last := uint32(before >> 32); last-now <= outOfOrder { // 0 for the same second
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

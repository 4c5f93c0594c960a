package observe

import "sync/atomic"

// perSecond admits a number of events in each second of the clock. It never waits.
type perSecond struct {
	state atomic.Uint64 // the second in the upper half, how many it has had in the lower
}

// outOfOrder is how many seconds after a later one an event may come: the store may have taken its time.
const outOfOrder = 10

// take says whether an event of this second, Unix time, is one of the first most. One of an earlier second counts for
// the last, within outOfOrder; a clock that went back further begins again.
func (p *perSecond) take(second int64, most uint32) bool {
	for {
		before := p.state.Load()
		now, taken := uint32(second), uint32(before)
		if last := uint32(before >> 32); last-now <= outOfOrder { // 0 if it is the same
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

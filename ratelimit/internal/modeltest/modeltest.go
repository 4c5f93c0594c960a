// Package modeltest is a reference model of limits, written as simply as possible: it uses fractions of any size where
// the daemon uses integers of fixed size, finds waiting times by search instead of by formulas, and handles one request
// after another. Tests compare the daemon's answers with the model's, and check what each algorithm admits.
package modeltest

import (
	"math/big"
	"sort"

	"gatehouse/ratelimit/internal/counter"
)

// Limit is one limit of a descriptor, with the name of its counter.
type Limit struct {
	// Key names the limit's counter. Unlike in a store, the key of a fixed window does not name the window: state has a
	// count for each window.
	Key       string
	Algorithm counter.Algorithm
	PerUnit   int64
	Window    int64 // seconds
	Burst     int64 // the size of a token bucket, in hits
	Shadow    bool
}

// Ask is one descriptor of a request: it adds N hits to each of its Limits or, if Refund is set, gives N hits back.
type Ask struct {
	Limits []Limit
	N      int64
	Refund bool
}

// Status is the answer to one descriptor.
type Status struct {
	Over      bool
	Limit     int // index in Ask.Limits of the deciding limit
	Remaining int64
	Reset     int64 // seconds
}

// Model holds the counters of all limits. The zero Model has no hits. Its methods take the time as a parameter, which
// may be earlier than in the call before.
type Model struct {
	// Stop has the meaning of the setting STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: nothing is counted for a request
	// that is refused.
	Stop     bool
	counters map[string]state
}

// state is the state of one counter. For a window, hits has the hits of each window by the window's number since time
// 0. For a token bucket, full is when the bucket will be full again, in µs.
type state struct {
	hits map[int64]int64
	full *big.Rat
}

const second = 1_000_000 // in µs

func (l *Limit) capacity() int64 {
	if l.Algorithm == counter.TokenBucket && l.PerUnit > 0 {
		return l.Burst
	}
	return l.PerUnit
}

// perHit returns how many µs it takes until a token bucket has regained the room for one hit.
func (l *Limit) perHit() *big.Rat { return big.NewRat(l.Window*second, l.PerUnit) }

// broughtDown returns the state s, corrected where it lies in the future of now, as it does after the clock was set
// back (ahead is then true). The newest sliding window becomes the present window. A token bucket becomes at most
// empty.
func (l *Limit) broughtDown(s state, now int64) (out state, ahead bool) {
	switch i := now / (l.Window * second); l.Algorithm {
	case counter.SlidingWindow:
		last := i
		for window := range s.hits {
			last = max(last, window)
		}
		if last > i {
			return state{hits: map[int64]int64{i: s.hits[last], i - 1: s.hits[last-1]}}, true
		}
	case counter.TokenBucket:
		if s.full == nil || l.PerUnit == 0 {
			return s, false
		}
		longest := new(big.Rat).Mul(big.NewRat(l.Burst, 1), l.perHit())
		if longest.Add(longest, big.NewRat(now, 1)); s.full.Cmp(longest) > 0 {
			return state{full: longest}, true
		}
	}
	return s, false
}

// bringsDown reports whether n hits make the store write a corrected state (see broughtDown) even if the hits are
// refused. They do if n hits could pass at some time.
func (l *Limit) bringsDown(n int64, refund bool) bool { return !refund && n > 0 && n <= l.capacity() }

// used returns how much of the limit's capacity the counter s uses at the time now.
func (l *Limit) used(s state, now int64) int64 {
	size := l.Window * second
	i := now / size
	s, _ = l.broughtDown(s, now)
	switch l.Algorithm {
	case counter.FixedWindow:
		return s.hits[i]
	case counter.SlidingWindow:
		// A window of Window seconds has a million ticks. Of the hits in the previous window, the share counts that
		// corresponds to the ticks of that window which lie less than one window's length before now.
		ticks := now % size / l.Window
		return s.hits[i] + ceil(big.NewRat(s.hits[i-1]*(second-ticks), second))
	}
	if s.full == nil {
		return 0
	}
	left := new(big.Rat).Sub(s.full, big.NewRat(now, 1))
	if left.Sign() <= 0 || l.PerUnit == 0 {
		return 0
	}
	return ceil(left.Quo(left, l.perHit()))
}

// add returns the counter s after n more hits at the time now.
func (l *Limit) add(s state, now, n int64) state {
	s, _ = l.broughtDown(s, now)
	if l.Algorithm != counter.TokenBucket {
		i := now / (l.Window * second)
		out := state{hits: map[int64]int64{}}
		for window, hits := range s.hits {
			out.hits[window] = hits
		}
		out.hits[i] = max(0, out.hits[i]+n)
		return out
	}
	full := big.NewRat(now, 1)
	if s.full != nil && s.full.Cmp(full) > 0 {
		full.Set(s.full)
	}
	full.Add(full, new(big.Rat).Mul(big.NewRat(n, 1), l.perHit()))
	return state{full: full}
}

// wait returns after how many µs n hits will pass. For hits that can never pass, it returns the time until the counter
// is empty.
func (l *Limit) wait(s state, now, n int64) int64 {
	s, _ = l.broughtDown(s, now)
	room := max(0, l.capacity()-n)
	longest := 2 * l.Window * second
	if l.Algorithm == counter.TokenBucket && l.PerUnit > 0 {
		longest = ceil(new(big.Rat).Mul(big.NewRat(l.Burst, 1), l.perHit())) + 1
	}
	return int64(sort.Search(int(longest), func(t int) bool { return l.used(s, now+int64(t)) <= room }))
}

// verdict is what one limit decides about a descriptor.
type verdict struct {
	over, shadow bool
	remaining    int64
	reset        int64
}

// answer returns the limit's verdict on n hits. s is the counter with which the verdict is made, and over says whether
// the hits exceed the limit.
func (l *Limit) answer(s state, now, n int64, over bool) verdict {
	v := verdict{over: over, shadow: l.Shadow}
	if !over {
		v.remaining = l.capacity() - l.used(s, now)
		n = l.capacity() // the reset of an OK is the time until the counter is empty
	}
	switch {
	case l.Algorithm == counter.FixedWindow:
		v.reset = l.Window - now/second%l.Window
	case l.PerUnit == 0:
		v.reset = l.Window
	default:
		v.reset = seconds(l.wait(s, now, n))
	}
	return v
}

// Used returns how much of a limit's capacity is used at the time now, in µs.
func (m *Model) Used(l *Limit, now int64) int64 { return l.used(m.counters[l.Key], now) }

// Request answers one request at the time now, in µs. asks are its descriptors.
func (m *Model) Request(now int64, asks []Ask) []Status {
	was := m.counters
	next := map[string]state{} // the counters, unless m.Stop leaves them unchanged
	for key, s := range was {
		next[key] = s
	}
	stopped := false
	verdicts := make([][]verdict, len(asks))
	for i, a := range asks {
		for _, l := range a.Limits {
			n := a.N
			over := l.used(next[l.Key], now)+n > l.capacity()
			next[l.Key] = l.after(next[l.Key], now, n, a.Refund, m.Stop)
			if a.Refund { // a refund is answered like a request without hits that follows it
				n = 0
				over = l.used(next[l.Key], now) > l.capacity()
			}
			stopped = stopped || m.Stop && over && !a.Refund && !l.Shadow
			verdicts[i] = append(verdicts[i], l.answer(next[l.Key], now, n, over))
		}
	}
	if !stopped {
		m.counters = next
	} else {
		was = m.bringDown(now, asks)
	}
	statuses := make([]Status, len(asks))
	for i, a := range asks {
		for j, l := range a.Limits {
			if v := &verdicts[i][j]; stopped { // nothing was counted, so the answer shows the counters as they were
				n := a.N
				if a.Refund {
					n = 0
				}
				over := v.over && !a.Refund || l.used(was[l.Key], now) > l.capacity()
				*v = l.answer(was[l.Key], now, n, over)
			}
		}
		statuses[i] = tightest(verdicts[i])
	}
	return statuses
}

// bringDown corrects the counters that lie in the future (see broughtDown) and that a request would have hit. It is for
// a request for which nothing else is counted because of Stop.
func (m *Model) bringDown(now int64, asks []Ask) map[string]state {
	for _, a := range asks {
		for _, l := range a.Limits {
			if down, ahead := l.broughtDown(m.counters[l.Key], now); ahead && l.bringsDown(a.N, a.Refund) {
				m.counters[l.Key] = down
			}
		}
	}
	return m.counters
}

// after returns the counter s after n hits. Hits that exceed the limit are not counted by sliding windows and token
// buckets; with stop, not by fixed windows either.
func (l *Limit) after(s state, now, n int64, refund, stop bool) state {
	down, _ := l.broughtDown(s, now)
	switch {
	case n == 0 || l.PerUnit == 0 && l.Algorithm != counter.FixedWindow:
		return s
	case refund && l.Algorithm == counter.TokenBucket:
		if l.used(s, now) == 0 {
			return s
		}
		after := l.add(s, now, -n)
		if after.full.Cmp(big.NewRat(now, 1)) <= 0 {
			return state{} // full whatever the clock says, so that it stays full when the clock is set back
		}
		return after
	case refund:
		if down.hits[now/(l.Window*second)] == 0 {
			return s
		}
		return l.add(s, now, -n)
	case (stop || l.Algorithm != counter.FixedWindow) && l.used(s, now)+n > l.capacity():
		if l.bringsDown(n, refund) {
			return down
		}
		return s
	}
	return l.add(s, now, n)
}

// tightest returns the status of a descriptor: the verdict of the limit that decides, by the same order as
// decide.Verdict.TighterThan.
func tightest(list []verdict) Status {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, b := list[order[i]], list[order[j]]
		switch {
		case a.shadow != b.shadow:
			return !a.shadow
		case a.over != b.over:
			return a.over
		case !a.over && a.remaining != b.remaining:
			return a.remaining < b.remaining
		}
		return a.reset > b.reset
	})
	v := list[order[0]]
	return Status{Over: v.over && !v.shadow, Limit: order[0], Remaining: v.remaining, Reset: v.reset}
}

func seconds(micros int64) int64 { return max(1, ceil(big.NewRat(micros, second))) }

func ceil(x *big.Rat) int64 {
	q, r := new(big.Int).QuoRem(x.Num(), x.Denom(), new(big.Int))
	if r.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

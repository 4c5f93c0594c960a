package counter

import (
	"math"
	"math/bits"
	"strings"
)

// Algorithm is how a counter turns hits into a decision.
type Algorithm uint8

// The algorithms. A fixed window counts every hit, including refused ones; its key names the window. A sliding window
// and a token bucket count only the hits that they admit. They use the clock of the store that holds the counter, and
// their keys name no window.
const (
	FixedWindow Algorithm = iota
	SlidingWindow
	TokenBucket
)

var algorithmNames = [...]string{FixedWindow: "fixed_window", SlidingWindow: "sliding_window",
	TokenBucket: "token_bucket"}

// String returns the name that rule files use.
func (a Algorithm) String() string { return algorithmNames[a] }

// ParseAlgorithm returns the algorithm with the given name, in upper or lower case, as String returns it.
func ParseAlgorithm(name string) (a Algorithm, ok bool) {
	for i, n := range algorithmNames {
		if strings.EqualFold(n, name) {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// AlgorithmNames returns the names of all algorithms in the order of the constants.
func AlgorithmNames() []string { return algorithmNames[:] }

// State is the state of a sliding window or a token bucket. The zero State is a counter without hits.
type State struct {
	// Now is the time for which the state is valid, in µs since the Unix epoch, by the clock of the store that holds
	// the counter.
	Now int64
	// For a sliding window, At is the number of the window that Current belongs to, counted from the Unix epoch. For a
	// token bucket, At is the time at which the bucket will be full again if nothing more is taken, in whole µs since
	// the epoch.
	At int64
	// Current and Previous are the hits admitted in sliding window number At and in the window before it.
	Current, Previous uint32
	// Rest, in units of 1/Limit µs, is the fraction of a µs to add to At for the exact time at which a token bucket is
	// full again.
	Rest uint32
}

// Meter has the limit's numbers by which a counter is judged; they come from the rule of a Hit. The methods of Meter
// are for sliding windows and token buckets. They are pure functions on integers, and exact: rounding never accumulates
// in a state, whatever the rate.
type Meter struct {
	// Algorithm is how the counter turns hits into a decision.
	Algorithm Algorithm
	// Window is the length of the window in seconds, at most 10 years. Limit is how many hits a window admits, or how
	// many a token bucket regains in a window; Burst is the size of a token bucket. Limit and Burst have at most 32
	// bits. An empty bucket takes at most 10 years to fill, too.
	Window       int64
	Limit, Burst uint64
}

const (
	// second is a second in µs. The arithmetic divides a window of w seconds into a million ticks of w µs.
	second = 1_000_000
	// maxWindow is 10 years, in seconds.
	maxWindow = 10 * 365 * 86400
)

// bounded returns the window and the limit, moved into the range in which the arithmetic cannot overflow. Rules with
// larger numbers are rejected when they are loaded.
func (m *Meter) bounded() (window int64, limit uint64) {
	return min(max(m.Window, 1), maxWindow), min(max(m.Limit, 1), math.MaxUint32)
}

// Capacity returns how much may be used at most: Burst for a token bucket, otherwise Limit.
func (m *Meter) Capacity() uint64 {
	if m.Algorithm != TokenBucket {
		return min(m.Limit, math.MaxUint32)
	}
	if m.Limit == 0 {
		return 0
	}
	return min(m.Burst, math.MaxUint32)
}

// Load advances a stored state to the time now of the store's clock, in µs. fromFuture reports that the state was ahead
// of now, because the clock was set back or the bucket's size was reduced. Load then corrects the state to one that is
// possible now, so that no counter refuses hits for longer than a full counter does.
//
// The state is changed in place, because copying a State that has just been written takes longer than the arithmetic.
func (m *Meter) Load(s *State, now int64) (fromFuture bool) {
	window, limit := m.bounded()
	s.Now = now
	if m.Algorithm == TokenBucket {
		s.Rest = uint32(min(uint64(s.Rest), limit-1))
		q, t := m.Take(m.Capacity())
		if s.At > now+q || s.At == now+q && s.Rest > t {
			s.At, s.Rest, fromFuture = now+q, t, true
		}
		return fromFuture
	}
	i := now / (window * second)
	switch {
	case s.At == i:
		return false
	case s.At == i-1:
		s.Current, s.Previous = 0, s.Current
	case s.At > i:
		fromFuture = true
	default:
		s.Current, s.Previous = 0, 0
	}
	s.At = i
	return fromFuture
}

// Take returns how long a bucket needs to regain n hits: q is in whole µs, t the fraction of a µs in units of 1/Limit
// µs.
func (m *Meter) Take(n uint64) (q int64, t uint32) {
	window, limit := m.bounded()
	if n == limit { // frequent, since the burst often equals the limit
		return window * second, 0
	}
	hi, lo := bits.Mul64(n, uint64(window*second))
	if hi >= limit {
		return maxWindow * second, 0
	}
	quo, rem := bits.Div64(hi, lo, limit)
	return int64(min(quo, maxWindow*second)), uint32(rem)
}

// elapsed returns how far the state's time is into its sliding window, in µs, and the length of the window in seconds.
func (m *Meter) elapsed(s *State) (e, window int64) {
	window, _ = m.bounded()
	return s.Now % (window * second), window
}

// weight returns how many of the previous window's hits still count, rounded up. The hits are assumed to be spread
// evenly over the previous window. A hit counts if it lies at most one Window before now.
func (m *Meter) weight(s *State) int64 {
	if s.Previous == 0 {
		return 0
	}
	e, window := m.elapsed(s)
	return (int64(s.Previous)*(second-e/window) + second - 1) / second
}

// Used returns how much of the capacity the state uses, rounded up.
func (m *Meter) Used(s *State) int64 {
	if m.Algorithm != TokenBucket {
		return int64(s.Current) + m.weight(s)
	}
	if s.At < s.Now {
		return 0
	}
	window, limit := m.bounded()
	hi, lo := bits.Mul64(uint64(s.At-s.Now), limit)
	lo, carry := bits.Add64(lo, uint64(s.Rest), 0)
	hi += carry
	w := uint64(window * second)
	if hi >= w {
		return math.MaxInt64
	}
	quo, rem := bits.Div64(hi, lo, w)
	if rem > 0 {
		quo++
	}
	return int64(min(quo, math.MaxInt64))
}

// Change is the effect of a hit on a counter.
type Change struct {
	// N is the number of hits; with 0, the counter is only read.
	N uint64
	// Refund subtracts the hits instead of adding them. The counter stays at 0 or above.
	Refund bool
	// Undo, set together with Refund, takes back hits that the counter has admitted. Window is the number of the
	// sliding window that was current when the hits were admitted.
	Undo   bool
	Window int64
}

// Apply carries out a change on a state that Load has advanced to now. used and refused are the answers as in Hit.After
// and Hit.Refused; changed reports whether the state has changed.
func (m *Meter) Apply(s *State, c Change) (used int64, refused, changed bool) {
	n := min(c.N, math.MaxInt64)
	switch {
	case n == 0:
		used = m.Used(s)
		return used, !c.Refund && uint64(used) > m.Capacity(), false
	case c.Refund:
		changed = m.giveBack(s, n, &c)
		return m.Used(s), false, changed
	}
	used = Saturate(m.Used(s), int64(n))
	if uint64(used) > m.Capacity() {
		return used, true, false
	}
	if m.Algorithm != TokenBucket {
		s.Current += uint32(n)
		return used, false, true
	}
	_, limit := m.bounded()
	q, t := m.Take(n)
	if s.At < s.Now {
		s.At, s.Rest = s.Now, 0
	}
	s.At += q
	if rest := uint64(s.Rest) + uint64(t); rest < limit {
		s.Rest = uint32(rest)
	} else {
		s.At, s.Rest = s.At+1, uint32(rest-limit)
	}
	return used, false, true
}

// giveBack subtracts n hits, n > 0, from a state. It returns false, and changes nothing, if the state had none.
func (m *Meter) giveBack(s *State, n uint64, c *Change) (changed bool) {
	if m.Algorithm != TokenBucket {
		of := &s.Current
		if c.Undo && c.Window != s.At {
			if of = &s.Previous; c.Window != s.At-1 {
				return false
			}
		}
		changed = *of > 0
		*of -= uint32(min(uint64(*of), n))
		return changed
	}
	if m.Empty(s) {
		return false
	}
	if n >= m.Capacity() { // also because n × Window may overflow
		s.At, s.Rest = 0, 0
		return true
	}
	_, limit := m.bounded()
	q, t := m.Take(n)
	s.At -= q
	if s.Rest >= t {
		s.Rest -= t
	} else {
		s.At, s.Rest = s.At-1, uint32(uint64(s.Rest)+limit-uint64(t))
	}
	if m.Empty(s) {
		s.At, s.Rest = 0, 0 // the same as without hits, so that the bucket stays full when the clock is set back
	}
	return true
}

// Empty reports whether the counter is equal to one without hits, so that a store need not keep it.
func (m *Meter) Empty(s *State) bool {
	if m.Algorithm == TokenBucket {
		return s.At < s.Now || s.At == s.Now && s.Rest == 0
	}
	return s.Current == 0 && s.Previous == 0
}

// TimeToEmpty returns after how many µs, rounded up, the counter is Empty if there are no further hits.
func (m *Meter) TimeToEmpty(s *State) int64 {
	if m.Algorithm == TokenBucket {
		left := s.At - s.Now
		if s.Rest > 0 {
			left++
		}
		return max(0, left)
	}
	e, window := m.elapsed(s)
	switch {
	case s.Current > 0:
		return 2*window*second - e
	case s.Previous > 0:
		return window*second - e
	}
	return 0
}

// Wait returns after how many µs, rounded up, n hits will pass if there are no further hits; 0 if they would pass now.
// If n exceeds the capacity, so that the hits never pass, Wait returns TimeToEmpty. For n = 0, it returns the time
// until no more than the capacity is used.
func (m *Meter) Wait(s *State, n uint64) int64 {
	if n > m.Capacity() {
		return m.TimeToEmpty(s)
	}
	if m.Algorithm == TokenBucket {
		return m.waitForTokens(s, n)
	}
	e, window := m.elapsed(s)
	size := window * second
	room := int64(m.Limit-n) - int64(s.Current) // what the present window leaves for hits of the previous window
	if s.Previous > 0 && room >= 0 {
		if ticks := room * second / int64(s.Previous); ticks >= 1 {
			return max(0, (second-ticks)*window-e)
		}
	}
	if room >= 0 {
		if s.Previous == 0 {
			return 0
		}
		return size - e
	}
	if ticks := int64(m.Limit-n) * second / int64(s.Current); ticks >= 1 { // the hits pass only in the next window
		return size - e + (second-ticks)*window
	}
	return 2*size - e
}

func (m *Meter) waitForTokens(s *State, n uint64) int64 {
	_, limit := m.bounded()
	at, left := s.At, s.Rest
	if at < s.Now {
		at, left = s.Now, 0
	}
	q, t := m.Take(n)
	all, rest := m.Take(m.Capacity())
	wait := at + q - s.Now - all
	switch parts := int64(left) + int64(t) - int64(rest); {
	case parts > int64(limit):
		wait += 2
	case parts > 0:
		wait++
	}
	return max(0, wait)
}

// Judge carries out a hit of a sliding window or a token bucket on a state that Load has advanced to now. It fills in
// the hit's answer, of which State is the state afterwards. s itself stays unchanged. changed reports whether the two
// states differ.
func (h *Hit) Judge(s *State) (changed bool) {
	c := h.Change()
	h.State = *s
	return h.JudgeChange(c)
}

// JudgeChange is Judge with h.State as the state before the hit. c is the result of h.Change before h.State was set.
func (h *Hit) JudgeChange(c Change) (changed bool) {
	h.After, h.Refused, changed = h.Apply(&h.State, c)
	h.Spared = false
	return changed
}

// BringsDown reports whether the hit makes a store write the corrected state of a counter that is ahead of the clock
// (see Meter.Load), even if the hit is refused. Looks without BringDown, refunds, and hits that can never pass do not.
func (h *Hit) BringsDown() bool {
	return h.BringDown || h.N > 0 && !h.Refund && h.Algorithm != FixedWindow && h.N <= h.Capacity()
}

// Change returns the hit's effect on the counter of a sliding window or a token bucket.
func (h *Hit) Change() Change {
	return Change{N: h.N, Refund: h.Refund, Undo: h.Undo, Window: h.State.At}
}

// Package counter counts hits in fixed windows, sliding windows and token buckets: in process, in a key-value store, or
// (fixed windows alone) in memcached.
//
// It knows keys, hits and windows; it never knows rules, gRPC or HTTP, nor any of the stores, which are packages of
// their own. Every Store passes the one conformance test, countertest.Run. A fixed window is part of its key, so no
// store reads the clock to begin one; Request.Now only says which counters are over and how long new ones live. Sliding
// windows and token buckets go by the clock of the store.
package counter

import (
	"context"
	"errors"
	"math"
)

// Store counts hits. Implementations are safe for concurrent use.
type Store interface {
	// Add carries out all hits of one request in order and fills in their After and Spared
	// fields. It returns by ctx's deadline. After an error no field means anything, and
	// hits may or may not have been counted; ErrPartial alone says that some hits have an answer.
	// The keys belong to the caller again when Add returns; a store that still needs one then has
	// made a copy.
	Add(ctx context.Context, req *Request) error
	// Peek fills in the After and State of one hit without counting it: the counter as it stands, 0 for a key that does
	// not exist. Of the hit it reads what names and judges the counter: Key, PerSecond, Window,
	// Algorithm, Limit, Burst.
	Peek(ctx context.Context, h *Hit) error
	// Reset deletes the counter of a hit, which then stands at 0. It reads of the hit what Peek does.
	Reset(ctx context.Context, h *Hit) error
	// Close ends what the store started. No call may be in flight.
	Close()
}

// Immediate marks a Store whose Add never waits: it may be called where others would wait for it.
type Immediate interface{ Immediate() }

// Request is the hits of one rate limit request.
type Request struct {
	Hits []Hit
	// Now is the time of the request, Unix seconds. Instant is the same in µs where the caller knows it: it saves the
	// in-process store a read of the clock, which its sliding windows and token buckets go by.
	Now, Instant int64
	// Stop says what a hit that would go over its Limit keeps from being written.
	Stop Stop
}

// Stop is what a hit that would go over its limit keeps from being written
// (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT).
type Stop uint8

const (
	// StopNone: nothing, it is written itself.
	StopNone Stop = iota
	// StopAll: all hits of the request, if it has no Shadow.
	StopAll
	// StopEach: itself alone. So a request is written that one store or script cannot decide about; see AddAcrossNodes.
	StopEach
)

// StopWhen is StopAll if the option is on, else StopNone.
func StopWhen(on bool) Stop {
	if on {
		return StopAll
	}
	return StopNone
}

// Hit is one increment of one counter.
type Hit struct {
	Key []byte
	// N is how many hits to add, at most 2^63-1; 0 only peeks and creates nothing.
	N uint64
	// Refund subtracts N instead, never below 0.
	Refund bool
	// Shadow hits stop no other hit under Request.Stop.
	Shadow bool
	// PerSecond routes the hit to the per-second instance where one is configured: the unit is second.
	PerSecond bool
	// Undo makes a Refund take back a hit that another store of the same request refused: State is then the one that
	// the hit had left. Fixed windows know no difference.
	Undo bool
	// BringDown makes a peek write a State from the future as it is judged, which only hits do otherwise.
	BringDown bool
	// Delete deletes the counter instead; only Reset sets it.
	Delete bool
	// Algorithm is how the counter turns hits into a decision.
	Algorithm Algorithm
	// Limit is the number the counter is judged against. The in-process store uses it when it
	// must drop a counter; Stop uses it to decide. Sliding windows and token buckets admit by it; it is then not 0.
	Limit uint64
	// Burst is the size of a token bucket.
	Burst uint64
	// Window is the length of the window and End its last instant (exclusive), both in seconds. Only fixed windows have
	// an End.
	Window, End int64

	// After is the total after this hit; hits on the same key in one request count one after another.
	// Sums saturate at 2^63-1. Under Stop, a hit that would go over its limit is not written, a
	// Shadow one neither, and After is what the total would have been.
	//
	// Of sliding windows and token buckets it is how much of the capacity is used after this hit. Refused ones are not
	// written, so it is then what would have been used.
	After int64
	// Spared says that Stop kept this hit from being written because another one is over;
	// After is then the total without it.
	Spared bool
	// Refused says that a sliding window or a token bucket did not admit the hit, and has not counted it; or, of a
	// peek, that more is used than the capacity. Fixed windows leave it false.
	Refused bool
	// State is the counter of a sliding window or a token bucket after this hit; without it, if
	// it was refused or Spared.
	State State
	// Err is why this hit has no answer. It means something only when Add has returned ErrPartial;
	// nil is then a hit that was carried out like any other.
	Err error
}

// Apply is the total after the hit: saturating at 2^63-1, never below 0.
func (h *Hit) Apply(total int64) int64 {
	n := int64(min(h.N, math.MaxInt64))
	if h.Refund {
		return max(0, total-n)
	}
	return Saturate(total, n)
}

// Over says whether the total is above the limit the hit is judged against. Refunds are never over.
func (h *Hit) Over(after int64) bool { return !h.Refund && uint64(after) > h.Limit }

// IsOver says whether the hit's answer is that it goes over its limit.
func (h *Hit) IsOver() bool {
	if h.Algorithm != FixedWindow {
		return h.Refused
	}
	return h.Over(h.After)
}

// TakeAnswer copies the answer of another hit, but for Err.
func (h *Hit) TakeAnswer(from *Hit) {
	h.After, h.Spared, h.Refused = from.After, from.Spared, from.Refused
	if h.Algorithm != FixedWindow {
		h.State = from.State
	}
}

// Saturate is a + b, at most the greatest number of its type. Neither is negative.
func Saturate[N int64 | uint64](a, b N) N {
	if sum := a + b; sum >= a {
		return sum
	}
	most := ^N(0)
	if most < 0 {
		most = math.MaxInt64
	}
	return most
}

// ExpirySlack is how many seconds a key outlives its window, for instances whose clocks differ.
const ExpirySlack = 5

// Errors of a Store. Everything else it returns wraps one of these; none names a host or a key
// in a way that callers of the daemon get to see.
var (
	// ErrUnavailable: the store cannot be reached, refused, or answered nonsense.
	ErrUnavailable = errors.New("counter: store unavailable")
	// ErrTimeout: no answer within the caller's deadline or the store's time-out.
	ErrTimeout = errors.New("counter: store timed out")
	// ErrBusy: no slot for a batch (KVSTORE_POOL_ON_EMPTY_BEHAVIOR).
	ErrBusy = errors.New("counter: no free slot to the store")
	// ErrFull: the in-process store is full of counters that are at or over their limits.
	ErrFull = errors.New("counter: in-process store is full")
	// ErrOpen: the breaker is open; nothing was sent.
	ErrOpen = errors.New("counter: breaker is open")
	// ErrPartial: some hits have no answer, and each says why in its Err; the others were carried out.
	ErrPartial = errors.New("counter: no answer for some of the hits")
)

// KeyError is the Err of a hit whose key the store can never hold.
type KeyError struct {
	// Why completes "the counter key ...". It holds nothing of the key.
	Why string
}

func (e *KeyError) Error() string { return "the counter key " + e.Why }

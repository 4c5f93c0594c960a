// Package counter counts hits in fixed windows, sliding windows and token buckets: in process, in a key-value store, or
// (fixed windows only) in memcached.
//
// The package knows keys, hits and windows. It never knows rules, gRPC or HTTP, nor any of the stores, which are
// packages of their own. Every Store passes the same conformance test, countertest.Run. A fixed window is part of its
// key, so no store reads the clock to begin one; Request.Now only says which counters are over and how long new
// counters live. Sliding windows and token buckets, together called meters, use the clock of the store.
package counter

import (
	"context"
	"errors"
	"math"
	"time"
)

// Store counts hits. Implementations are safe for concurrent use.
type Store interface {
	// Add carries out all hits of one request in order and fills in their After and Spared fields. It returns by ctx's
	// deadline. After an error no field is valid, and hits may or may not have been counted; only with ErrPartial do
	// some hits have an answer. When Add returns, the keys belong to the caller again; a store that still needs a key
	// has made a copy.
	Add(ctx context.Context, req *Request) error
	// Peek fills in the After and State of one hit without counting it: the counter as it stands, 0 for a key that does
	// not exist. It uses only the fields that name and judge the counter: Key, PerSecond, Window, Algorithm, Limit,
	// Burst.
	Peek(ctx context.Context, h *Hit) error
	// Reset deletes the counter of a hit, which is then 0. It uses the same fields as Peek.
	Reset(ctx context.Context, h *Hit) error
	// Close ends the store's goroutines and connections. No call may be in flight.
	Close()
}

// Peek is the Peek of stores whose Add needs no more than a hit that only looks.
func Peek(ctx context.Context, s Store, h *Hit) error {
	look := *h
	look.N, look.Refund, look.Undo, look.Delete = 0, false, false, false
	req := Request{Hits: []Hit{look}}
	if err := Whole(&req, s.Add(ctx, &req)); err != nil {
		return err
	}
	h.TakeAnswer(&req.Hits[0])
	return nil
}

// Immediate marks a Store whose Add never waits, so that Add may be called where other stores are called later.
type Immediate interface{ Immediate() }

// Request is the hits of one rate limit request.
type Request struct {
	Hits []Hit
	// Now is the time of the request in Unix seconds. Instant is the same time in µs, or 0 if the caller does not know
	// it. Instant saves the in-process store a read of the clock for its sliding windows and token buckets.
	Now, Instant int64
	// Stop says which hits are not written when a hit would go over its Limit.
	Stop Stop
}

// Stop says which hits are not written when a hit would go over its limit (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT).
type Stop uint8

const (
	// StopNone: none; the hit itself is written, too.
	StopNone Stop = iota
	// StopAll: all hits of the request, unless the hit is Shadow.
	StopAll
	// StopEach: only the hit itself. AddAcrossNodes uses it for requests that no single store or script can decide.
	StopEach
)

// StopWhen returns StopAll if the option is on, otherwise StopNone.
func StopWhen(on bool) Stop {
	if on {
		return StopAll
	}
	return StopNone
}

// Hit is one increment of one counter.
type Hit struct {
	Key []byte
	// N is how many hits to add, at most 2^63-1; 0 only looks and creates nothing.
	N uint64
	// Refund subtracts N instead, never below 0.
	Refund bool
	// Shadow hits stop no other hit under Request.Stop.
	Shadow bool
	// PerSecond routes the hit to the per-second instance where one is configured: the unit is second.
	PerSecond bool
	// Undo makes a Refund take back a hit of a request in which another store refused a hit: State is then the state
	// that the undone hit had left. It makes no difference to fixed windows.
	Undo bool
	// BringDown makes a look write a State from the future as it is judged, as otherwise only hits do.
	BringDown bool
	// Delete deletes the counter instead; only Reset sets it.
	Delete bool
	// Meter has the counter's algorithm and numbers. Limit is what the counter is judged against: the in-process store
	// uses it when it must drop a counter, Stop uses it to decide, and sliding windows and token buckets admit hits by
	// it; for these it is not 0.
	Meter
	// End is the end (exclusive) of a fixed window, in seconds.
	End int64
	// After is the total after this hit; hits on the same key in one request count one after another. Sums saturate at
	// 2^63-1. Under Stop, a hit that would go over its limit, Shadow or not, is not written, and After is what the
	// total would have been.
	//
	// For sliding windows and token buckets, After is how much of the capacity is used after this hit. Refused hits are
	// not written; for these After is what would have been used.
	After int64
	// Spared reports that Stop kept this hit from being written because another hit is over; After is then the total
	// without this hit.
	Spared bool
	// Refused reports that a sliding window or a token bucket did not admit the hit, and has not counted it; for a
	// look, that more than the capacity is used. Fixed windows leave it false.
	Refused bool
	// State is the counter of a sliding window or a token bucket after this hit, or without this hit if it was refused
	// or Spared.
	State State
	// Err is why this hit has no answer. It is valid only when Add has returned ErrPartial; nil then means that the hit
	// was carried out.
	Err error
}

// AddTo returns a fixed window's total after the hit: saturating at 2^63-1, never below 0.
func (h *Hit) AddTo(total int64) int64 {
	n := int64(min(h.N, math.MaxInt64))
	if h.Refund {
		return max(0, total-n)
	}
	return Saturate(total, n)
}

// Over reports whether the total is above the hit's limit. Refunds are never over.
func (h *Hit) Over(after int64) bool { return !h.Refund && uint64(after) > h.Limit }

// IsOver reports whether the hit's answer is that it goes over its limit.
func (h *Hit) IsOver() bool {
	if h.Algorithm != FixedWindow {
		return h.Refused
	}
	return h.Over(h.After)
}

// TakeAnswer copies the answer of another hit, except Err.
func (h *Hit) TakeAnswer(from *Hit) {
	h.After, h.Spared, h.Refused = from.After, from.Spared, from.Refused
	if h.Algorithm != FixedWindow {
		h.State = from.State
	}
}

// Saturate returns a + b, at most the greatest number of its type. a and b are not negative.
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

// Errors of a Store. Every other error of a Store wraps one of these. No error that the daemon's callers see names a
// host or a key.
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
	// Why completes "the counter key ...". It contains no part of the key.
	Why string
}

func (e *KeyError) Error() string { return "the counter key " + e.Why }

// Async is a Store, or a part of one, that answers requests without a waiting goroutine for each.
type Async interface {
	// Start takes requests and completes each exactly once: through its Owner, on a goroutine of the store that holds
	// no lock, and never within Start. All requests are taken under one lock. Start returns the requests that it does
	// not take, in calls' own memory: with an error, or without one where Add has to be called. Taken requests belong
	// to the store until they are completed.
	Start(calls []*Pending) (refused []*Pending)
}

// AsyncStore is a Store that can take requests without a waiting goroutine.
type AsyncStore interface {
	// Async returns what takes the request; nil: Add has to be called.
	Async(req *Request) Async
}

// Pending is a request on its way through an Async.
type Pending struct {
	Req *Request
	// Deadline is when the caller gives up; zero: never. A watchdog checks it every 2 ms, so no Async takes a request
	// whose deadline is nearer than Soon.
	Deadline time.Time
	// Owner is notified of the completion. Tag is for the owner's use.
	Owner Owner
	Tag   any
	// Err is the error that Add would return.
	Err error
	// From identifies a connection, so that no connection holds up the others; 0: any.
	From uint64
	// Own is for the Async's use.
	Own any
}

// Soon is how near a deadline may be at most for an Async to take the request.
const Soon = 12 * time.Millisecond

// Owner is notified of its completed requests, those of one batch together. It must not block.
type Owner interface{ Complete(done []*Pending) }

// Async implements AsyncStore.
func (r *PerSecondRouter) Async(req *Request) Async {
	if s, ok := r.only(req).(AsyncStore); ok {
		return s.Async(req)
	}
	return nil
}

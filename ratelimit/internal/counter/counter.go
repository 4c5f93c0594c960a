// Package counter counts hits in fixed windows, sliding windows and token buckets. It defines what a store of counters
// has to do; the stores themselves count in this process, in a key-value store or, fixed windows only, in memcached.
//
// The package knows keys, hits and windows. It knows neither rules nor gRPC nor HTTP, nor any of the stores, which are
// packages of their own and all pass the same conformance test, countertest.Run.
//
// The key of a fixed window names the window, so that a store need not read the clock to begin a new one. A store uses
// Request.Now only to tell which windows have ended and how long to keep a new counter. Sliding windows and token
// buckets, together called meters, depend on the time of each hit, for which the clock of the store is used.
package counter

import (
	"context"
	"errors"
	"math"
	"time"
)

// Store counts hits. Implementations are safe for concurrent use.
type Store interface {
	// Add carries out all hits of one request in order and fills in their After and Spared fields and, for meters,
	// Refused and State. It returns before ctx's deadline.
	//
	// After an error, none of these fields is valid, and the hits may or may not have been counted. Only the error
	// ErrPartial means that some hits have an answer; see Hit.Err.
	//
	// When Add returns, the caller may change the keys again; a store that needs a key for longer makes a copy.
	Add(ctx context.Context, req *Request) error
	// Peek fills in the After and State of one hit without counting it: they show the counter as it is, or 0 if the key
	// does not exist. Peek uses only the fields that identify the counter and its limit: Key, PerSecond, Window,
	// Algorithm, Limit, Burst.
	Peek(ctx context.Context, h *Hit) error
	// Reset deletes the counter of a hit, so that it is 0. It uses the same fields as Peek.
	Reset(ctx context.Context, h *Hit) error
	// Close ends the store's goroutines and connections. No call may be in flight.
	Close()
}

// Peek implements Store.Peek by Store.Add, for stores that need nothing else to read a counter.
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

// Immediate marks a Store whose Add never waits for anything outside of the process. Add may then be called even by a
// goroutine that must not block.
type Immediate interface{ Immediate() }

// Request is the hits of one rate limit request.
type Request struct {
	Hits []Hit
	// Now is the time of the request in Unix seconds. Instant is the same time in µs, or 0 if the caller does not know
	// it. The in-process store uses Instant for meters, so that it need not read the clock.
	Now, Instant int64
	// Stop says which hits are not counted if one of them exceeds its limit.
	Stop Stop
}

// Stop says which hits of a request are not counted if one of them exceeds its limit
// (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT).
type Stop uint8

const (
	// StopNone counts all hits, even those that exceed their limits.
	StopNone Stop = iota
	// StopAll counts none of the request's hits if a hit whose limit is not in shadow mode exceeds its limit.
	StopAll
	// StopEach decides on each hit alone: a hit is not counted if its counter would then be above its limit, whatever
	// becomes of the request's other hits. AddAcrossNodes uses it if a request's counters are on several nodes or in
	// several stores, so that no single script can decide on all of them.
	StopEach
)

// StopWhen returns StopAll if the option is on, and otherwise StopNone.
func StopWhen(on bool) Stop {
	if on {
		return StopAll
	}
	return StopNone
}

// Hit adds a number of hits to one counter. It holds the parameters and the answer.
type Hit struct {
	Key []byte
	// N is how many hits to add, at most 2^63-1. A hit with N = 0, called a look, reads the counter and does not create
	// it.
	N uint64
	// Refund subtracts N from the counter instead of adding it. The counter stays at 0 or above.
	Refund bool
	// Shadow reports that the limit is in shadow mode: it counts hits but refuses none. If this hit exceeds its limit,
	// other hits are counted all the same under Request.Stop.
	Shadow bool
	// PerSecond reports that the limit's unit is a second. If a separate store for such limits is configured,
	// PerSecondRouter sends the hit to it.
	PerSecond bool
	// Undo, set together with Refund, takes back a hit that was counted although another store refused a hit of the
	// same request. State must be the state that the undone hit left. For fixed windows, Undo has no effect.
	Undo bool
	// BringDown makes a look (a hit with N = 0) correct a stored State that is ahead of the clock (see Meter.Load), as
	// hits do that add to the counter.
	BringDown bool
	// Delete deletes the counter instead of adding N. Only Reset sets it.
	Delete bool
	// Meter has the counter's algorithm and the numbers of its limit. Fixed windows use Limit only under Stop and, in
	// the in-process store, to choose the counter to drop when it is full. Sliding windows and token buckets admit hits
	// by the Limit, which is not 0 for them.
	Meter
	// End is when a fixed window ends (exclusive), in Unix seconds.
	End int64
	// After is the counter's total after this hit. Several hits on the same key in one request are counted one after
	// another. Totals are at most 2^63-1. Under Stop, a hit that exceeds its limit is not counted, even if it is
	// Shadow; After is then what the total would have been.
	//
	// For sliding windows and token buckets, After is how much of the capacity is used after this hit. A hit that
	// exceeds the capacity is not counted, and After is then how much would have been used.
	After int64
	// Spared reports that Stop kept this hit from being counted because another hit exceeds its limit. After is then
	// the total without this hit.
	Spared bool
	// Refused reports that a sliding window or a token bucket did not admit the hit and has not counted it. For a look,
	// it reports that more than the capacity is used. For a fixed window, Refused is always false.
	Refused bool
	// State is the state of a sliding window or a token bucket after this hit or, if the hit was Refused or Spared,
	// without it.
	State State
	// Err says why this hit has no answer. It is valid only if Add returned ErrPartial; nil then means that the hit was
	// carried out.
	Err error
}

// AddTo returns the total of a fixed window after the hit, given the total before. It is at least 0 and at most 2^63-1.
func (h *Hit) AddTo(total int64) int64 {
	n := int64(min(h.N, math.MaxInt64))
	if h.Refund {
		return max(0, total-n)
	}
	return Saturate(total, n)
}

// Over reports whether the total after the hit exceeds the hit's limit. A refund never exceeds it.
func (h *Hit) Over(after int64) bool { return !h.Refund && uint64(after) > h.Limit }

// IsOver reports whether the hit, whose answer is filled in, exceeds its limit.
func (h *Hit) IsOver() bool {
	if h.Algorithm != FixedWindow {
		return h.Refused
	}
	return h.Over(h.After)
}

// TakeAnswer copies the answer of another hit on the same counter, except Err.
func (h *Hit) TakeAnswer(from *Hit) {
	h.After, h.Spared, h.Refused = from.After, from.Spared, from.Refused
	if h.Algorithm != FixedWindow {
		h.State = from.State
	}
}

// Saturate returns a + b, or the greatest number of the type if the sum is greater. a and b must not be negative.
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

// ExpirySlack is how many seconds a store keeps a key after the end of its window, since the clocks of instances
// differ.
const ExpirySlack = 5

// The errors of a Store. Any other error of a Store wraps one of them. What clients of the daemon see of an error
// contains no host name and no key.
var (
	// ErrUnavailable: the store cannot be reached, refused the command, or gave an answer that makes no sense.
	ErrUnavailable = errors.New("counter: store unavailable")
	// ErrTimeout: the store did not answer within the caller's deadline or the store's time-out.
	ErrTimeout = errors.New("counter: store timed out")
	// ErrBusy: all connections to the store are in use (KVSTORE_POOL_ON_EMPTY_BEHAVIOR).
	ErrBusy = errors.New("counter: no free slot to the store")
	// ErrFull: the in-process store is full of counters that it must not drop, since they are at or over their limits.
	ErrFull = errors.New("counter: in-process store is full")
	// ErrOpen: the store has failed, so its circuit breaker is open. Nothing was sent.
	ErrOpen = errors.New("counter: breaker is open")
	// ErrPartial: some hits have no answer; Hit.Err says why. The other hits were carried out.
	ErrPartial = errors.New("counter: no answer for some of the hits")
)

// KeyError is the error of a hit whose key the store cannot hold, such as a key that is too long for memcached.
type KeyError struct {
	// Why says what is wrong, as the end of a sentence that begins with "the counter key". It contains no part of the
	// key.
	Why string
}

func (e *KeyError) Error() string { return "the counter key " + e.Why }

// Async is a Store, or a part of one, that carries out requests without a goroutine that waits for each.
type Async interface {
	// Start takes requests and, later, completes each of them exactly once by calling its Owner's Complete. It does so
	// on a goroutine of the store that holds no lock, and never within Start. All requests are taken under one lock,
	// and belong to the store until they are completed.
	//
	// Start returns the requests that it does not take, in the memory of calls. If the Err of such a request is nil,
	// the caller has to call Add for it.
	Start(calls []*Pending) (refused []*Pending)
}

// AsyncStore is a Store that can carry out some requests by an Async.
type AsyncStore interface {
	// Async returns the Async that can carry out the request, or nil if the caller has to call Add.
	Async(req *Request) Async
}

// Pending is a request that an Async carries out.
type Pending struct {
	Req *Request
	// Deadline is when the caller gives up; zero means never. Deadlines are checked only every 2 ms, so no Async takes
	// a request whose deadline is nearer than Soon.
	Deadline time.Time
	// Owner is notified when the request is completed. Tag is for the owner's use.
	Owner Owner
	Tag   any
	// Err is the error that Add would have returned. Start or the completion sets it.
	Err error
	// From is the number of the client connection that the request came from; 0: unknown. A store uses it to keep one
	// connection from delaying the requests of others.
	From uint64
	// Own is for the use of the Async.
	Own any
}

// Soon is how far ahead the deadline of a request must be at least for an Async to take it.
const Soon = 12 * time.Millisecond

// Owner is notified when requests of its own are completed, with one call for all of them in a batch. Complete must not
// block.
type Owner interface{ Complete(done []*Pending) }

// Async implements AsyncStore.
func (r *PerSecondRouter) Async(req *Request) Async {
	if s, ok := r.only(req).(AsyncStore); ok {
		return s.Async(req)
	}
	return nil
}

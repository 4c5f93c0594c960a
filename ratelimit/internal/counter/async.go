package counter

import (
	"time"
)

// Async is a Store, or a part of one, that answers requests without a goroutine that waits for each.
type Async interface {
	// Start takes requests, all of one lock and one launch, and completes each exactly once: through its Owner, on a
	// goroutine of the store that holds no lock, and never within Start. Those that it does not take are returned in
	// calls' own memory: with an error, or without one where Add has to be called. Requests belong to the store until
	// they are completed.
	Start(calls []*Pending) (refused []*Pending)
}

// AsyncStore is a Store whose requests may be started.
type AsyncStore interface {
	// Async is what takes a request; nil: Add has to be called.
	Async(req *Request) Async
}

// Pending is a request on its way through an Async.
type Pending struct {
	Req *Request
	// Deadline is when the caller gives up; zero: never. A watchdog checks it each 2 ms, so that one that is nearer
	// than Soon is not taken.
	Deadline time.Time
	// Owner is notified of the completion; Tag is the owner's.
	Owner Owner
	Tag   any
	// Err is as Add's.
	Err error
	// From identifies the connection, none of which may hold up the others; 0: any.
	From uint64
	// Own is the Async's.
	Own any
}

// Soon is how near a deadline is that no Async takes.
const Soon = 12 * time.Millisecond

// Owner is notified which of its requests are complete, those of one batch together. It must not block.
type Owner interface{ Complete(done []*Pending) }

// Async implements AsyncStore.
func (r *PerSecondRouter) Async(req *Request) Async {
	if s, ok := r.only(req).(AsyncStore); ok {
		return s.Async(req)
	}
	return nil
}

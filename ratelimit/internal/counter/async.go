package counter

import (
	"time"
)

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

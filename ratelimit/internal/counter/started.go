package counter

import (
	"time"
)

// Starter is a Store, or a part of one, that answers requests without a goroutine that waits for each.
type Starter interface {
	// Start takes requests, all of one lock and one launch, and completes each exactly once: through its Owner, on a
	// goroutine of the store that holds no lock, and never within Start. Those that it does not take are returned in
	// calls' own memory: with an error, or without one where Add has to be called. Requests belong to the store until
	// they are completed.
	Start(calls []*Started) (refused []*Started)
}

// Starting is a Store whose requests may be started.
type Starting interface {
	// Starter is what takes a request; nil: Add has to be called.
	Starter(req *Request) Starter
}

// Started is a request on its way through a Starter.
type Started struct {
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
	// Own is the Starter's.
	Own any
}

// Soon is how near a deadline is that no Starter minds.
const Soon = 12 * time.Millisecond

// Owner is notified which of its requests are complete, those of one batch together. It must not block.
type Owner interface{ Complete(done []*Started) }

// Starter implements Starting.
func (r *PerSecondRouter) Starter(req *Request) Starter {
	if s, ok := r.only(req).(Starting); ok {
		return s.Starter(req)
	}
	return nil
}

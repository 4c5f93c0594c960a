package h2grpc

import (
	"sync"
	"sync/atomic"
)

const (
	// maxHeld bounds what the streams of one connection hold, in bytes.
	maxHeld = 8 << 20
	// leastMemory and mostMemory bound Options.Memory.
	leastMemory = 16 << 20
	mostMemory  = 256 << 20
	// announced is how much of a message has to be there before memory for all of it is allocated.
	announced = 64 << 10
)

// account is the memory that peers make the server keep: messages and header blocks that are not complete, long
// messages of calls that wait for the store, and answers that wait for a window. What is allocated counts, not what has
// come of it.
type account struct {
	limit int64
	used  atomic.Int64
	mu    sync.Mutex // of the goroutine that makes room
}

func (a *account) over() bool { return a.used.Load() > a.limit }

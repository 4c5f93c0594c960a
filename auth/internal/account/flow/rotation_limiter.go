package flow

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// rotationLimiter limits, in this process, how often each session may rotate its refresh token, so that a broken client
// in a loop gets a 503 before it reaches the database. The limit is by session, not by client address: if other clients
// at the address could use up the limit, they would sign the user out.
type rotationLimiter struct {
	mu     sync.Mutex
	levels map[uuid.UUID]bucket
	// sweepAt is the number of buckets at which full buckets are dropped from levels. A session without a bucket counts
	// as one with a full bucket.
	sweepAt int
}

type bucket struct {
	tokens float64
	at     time.Time
}

const sweepFirst = 4096

// left returns how many rotations a bucket of size burst has at the time now. One is added each second.
func (b bucket) left(burst int, now time.Time) float64 {
	return min(float64(burst), b.tokens+max(0, now.Sub(b.at).Seconds()))
}

// Allow reports whether a session may try a rotation. It takes nothing from the bucket: a refresh that only returns the
// current token again does not count.
func (b *rotationLimiter) Allow(id uuid.UUID, burst int, now time.Time) bool {
	if burst <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v, known := b.levels[id]
	return !known || v.left(burst, now) >= 1
}

// Take counts a rotation. Parallel rotations may overdraw the bucket a little, which then takes longer to refill.
func (b *rotationLimiter) Take(id uuid.UUID, burst int, now time.Time) {
	if burst <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.levels == nil {
		b.levels, b.sweepAt = map[uuid.UUID]bucket{}, sweepFirst
	}
	v, known := b.levels[id]
	if !known {
		v = bucket{tokens: float64(burst), at: now}
	}
	b.levels[id] = bucket{tokens: v.left(burst, now) - 1, at: now}
	if len(b.levels) >= b.sweepAt {
		for id, v := range b.levels {
			if v.left(burst, now) >= float64(burst) {
				delete(b.levels, id)
			}
		}
		b.sweepAt = max(sweepFirst, 2*len(b.levels))
	}
}

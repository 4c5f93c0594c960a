package xds

import (
	"math/rand/v2"
	"time"
)

// pauses are the waits between tries. Until the first good response all are the one after a failed dial: a
// daemon without rules decides nothing, so it does not wait longer and longer. From then on each failure of
// a kind doubles the next, up to longest.
type pauses struct {
	dial, stream, longest time.Duration
	jitter                float64
	random                func() float64 // 0 to 1
	settled               bool           // there was a good response
	dials, streams        int            // failures since the last one
}

func newPauses(dial, stream, longest time.Duration, jitter float64) pauses {
	return pauses{dial: dial, stream: stream, longest: longest, jitter: jitter, random: rand.Float64}
}

func (p *pauses) dialFailed() time.Duration {
	p.dials++
	return p.pause(p.dial, p.dials)
}

func (p *pauses) streamBroke() time.Duration {
	p.streams++
	return p.pause(p.stream, p.streams)
}

// reset follows a good response.
func (p *pauses) reset() { p.settled, p.dials, p.streams = true, 0, 0 }

// pause is initial at the first failure. Jitter makes it no longer than longest.
func (p *pauses) pause(initial time.Duration, failures int) time.Duration {
	if !p.settled {
		return p.dial
	}
	d := min(initial, p.longest)
	for ; failures > 1 && d < p.longest; failures-- {
		d = min(2*d, p.longest)
	}
	d += time.Duration(float64(d) * p.jitter * (2*p.random() - 1))
	return max(0, min(d, p.longest))
}

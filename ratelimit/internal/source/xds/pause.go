package xds

import (
	"math/rand/v2"
	"time"
)

// pauses are the waits between tries. Until the first accepted response each pause is the one after the first failed
// dial: a daemon without rules decides nothing, so its pauses do not grow. Afterwards each failure of a kind doubles
// the next pause, up to longest.
type pauses struct {
	dial, stream, longest time.Duration
	jitter                float64
	random                func() float64 // from 0 to 1
	settled               bool           // there was an accepted response
	dials, streams        int            // failures since the last accepted response
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

// reset is called after an accepted response.
func (p *pauses) reset() { p.settled, p.dials, p.streams = true, 0, 0 }

// pause returns initial for the first failure. Jitter makes no pause longer than longest.
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

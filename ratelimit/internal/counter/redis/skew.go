package redis

import (
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	// skewEvery is how often a server's clock is read.
	skewEvery = 10 * time.Second
	// skewSlowest is the longest that a reading may take: its error is up to half of that.
	skewSlowest = 100 * time.Millisecond
	// skewWarns is the difference from which a warning is logged.
	skewWarns = 200 * time.Millisecond
)

// skew compares this machine's clock, which decides fixed windows, with a server's, on connections that are pinged. It
// needs no right: after a server has refused TIME, skew does not send it again.
type skew struct {
	report func(server string, offset time.Duration) // as Options.Skew
	log    *slog.Logger

	mu      sync.Mutex
	last    time.Time // when a server's clock was last read
	warned  time.Time
	refused bool
}

// due reports whether the clock is to be read now.
func (s *skew) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report != nil && !s.refused && (s.last.IsZero() || time.Since(s.last) >= skewEvery)
}

// ahead returns how far a machine's time is ahead of an answer to TIME: seconds and microseconds.
func ahead(at time.Time, there []int64) time.Duration {
	return at.Round(0).Sub(time.Unix(there[0], there[1]*1000))
}

// take takes the answer to a TIME that was sent at sent.
func (s *skew) take(server string, r rueidis.RedisResult, sent time.Time) {
	took := time.Since(sent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	if _, is := rueidis.IsRedisErr(r.Error()); is {
		s.refused = true
		s.log.Info("the key-value store does not tell its time: that clocks differ goes unseen (ACL: +time)")
		return
	}
	parts, err := r.AsIntSlice()
	if err != nil || len(parts) != 2 || took > skewSlowest {
		return
	}
	offset := ahead(sent.Add(took/2), parts)
	s.report(server, offset)
	if offset.Abs() > skewWarns && (s.warned.IsZero() || time.Since(s.warned) >= time.Hour) {
		s.warned = time.Now()
		s.log.Warn("this machine's clock differs from the key-value store's: near the edges of windows hits are counted "+
			"in others than those of replicas whose clocks are right", "ahead", offset.Round(time.Millisecond))
	}
}

package httpapi

import (
	"crypto/sha256"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
)

// routeLimit is one of the rate limiters by client. Each counts separately.
type routeLimit uint8

const (
	bySignup routeLimit = iota
	byRecover
	byResend
	byMagicLink
	byOTP
	byUser
	byAnonymous
	byToken
	byVerify
	byAuthorize
	byCallback
	byReauthenticate
	byEnroll
	byChallenge
	byFactorVerify
	byPasskeyOptions
	byPasskeyVerify
	byPasskeyRegistration
	limiterCount
)

// rate describes a token bucket. The bucket holds no more tokens than the field burst says. As many tokens as n says
// are refilled, evenly, in the time per.
type rate struct {
	burst float64
	n     float64
	per   time.Duration
}

func (l Limits) rate(by routeLimit) rate {
	switch by {
	case byAnonymous:
		return rate{burst: float64(l.Anonymous), n: float64(l.Anonymous), per: time.Hour}
	case byToken:
		return rateOf(l.Token)
	case byVerify, byAuthorize, byCallback:
		return rateOf(l.Verify)
	case byPasskeyOptions, byPasskeyVerify, byPasskeyRegistration:
		return rateOf(l.Passkeys)
	case byChallenge, byFactorVerify:
		return rate{burst: float64(min(30, 30*l.Factors)), n: float64(l.Factors), per: time.Minute}
	}
	return rateOf(l.OTP)
}

// rateOf returns a rate of n requests in 5 minutes, of which at most 30 may come at once.
func rateOf(n int) rate { return rate{burst: float64(min(30, n)), n: float64(n), per: 5 * time.Minute} }

const (
	shards = 16
	// maxKeys is how many clients a shard holds. Beyond it, the shard drops some clients, so that a client that sends
	// from a whole network cannot fill the memory.
	maxKeys = 1 << 15
	// sweepEvery is how often full buckets are dropped. That changes nothing, since a new bucket is full too.
	sweepEvery = time.Minute
)

// limiter holds a token bucket for each client, in this process.
type limiter struct {
	seed  maphash.Seed
	shard [shards]shard
}

type shard struct {
	mu      sync.Mutex
	buckets map[string]bucket
	swept   time.Time
}

type bucket struct {
	left float64
	at   time.Time
}

func (l *limiter) init() {
	l.seed = maphash.MakeSeed()
	for i := range l.shard {
		l.shard[i].buckets = map[string]bucket{}
	}
}

// draft is what a request takes from its bucket: the field cost is the number of tokens that it takes, and the field
// needed is how many the bucket must hold for that.
type draft struct{ needed, cost float64 }

var (
	take = draft{1, 1}
	look = draft{1, 0} // checks as take does, but takes nothing
	// charge takes even from an empty bucket. So concurrent requests may overdraw the bucket, by at most a burst.
	charge = draft{math.Inf(-1), 1}
)

// draw takes tokens, as d says, from the bucket of the client with this key. If the bucket does not hold enough, wait
// is the time until it holds a token; otherwise it is 0.
func (l *limiter) draw(d draft, key string, r rate, now time.Time) (wait time.Duration) {
	if len(key) > 64 {
		sum := sha256.Sum256([]byte(key))
		key = string(sum[:])
	}
	s := &l.shard[maphash.String(l.seed, key)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.swept) >= sweepEvery {
		s.sweep(r, now)
	}
	b, known := s.buckets[key]
	if !known {
		s.makeRoom()
		b = bucket{left: r.burst, at: now}
	}
	b.left = r.leftOf(b, now)
	b.at = now
	if b.left >= d.needed {
		b.left = max(b.left-d.cost, -r.burst)
		s.buckets[key] = b
		return 0
	}
	s.buckets[key] = b
	if r.n <= 0 {
		return time.Hour
	}
	return max(time.Nanosecond, time.Duration((1-b.left)/r.n*float64(r.per)))
}

func (r rate) leftOf(b bucket, now time.Time) float64 {
	return min(r.burst, b.left+max(0, now.Sub(b.at).Seconds())/r.per.Seconds()*r.n)
}

func (s *shard) sweep(r rate, now time.Time) {
	s.swept = now
	for key, b := range s.buckets {
		if r.leftOf(b, now) >= r.burst {
			delete(s.buckets, key)
		}
	}
}

func (s *shard) makeRoom() {
	for key := range s.buckets {
		if len(s.buckets) < maxKeys {
			return
		}
		delete(s.buckets, key)
	}
}

// draw takes tokens, as d says, from the client's bucket of one limiter. It returns how long the client must wait for
// its next request; 0: it need not wait. A client without a key has no limit.
func (s *Server) draw(d draft, c *call, by routeLimit) (wait time.Duration) {
	key := s.limitKey(c)
	if key == "" {
		return 0
	}
	return s.limiters[by].draw(d, key, c.live.Limits.rate(by), s.now())
}

// limit takes one request from the client's bucket, or returns a 429.
func (s *Server) limit(c *call, by routeLimit) error {
	wait := s.draw(take, c, by)
	if wait == 0 {
		return nil
	}
	return &problem{status: 429, code: refusal.CodeOverRequestRate, msg: "Request rate limit reached",
		retryAfter: retryIn(wait)}
}

// sender returns what flows need to know about the client, for a route that sends mails or SMS and requires no token. A
// valid token of an administrator lifts the limit of the client.
func (s *Server) sender(c *call) flow.RequestInfo {
	client := c.requestInfo()
	if client.Network != "" || c.console {
		client.Admin, _ = c.isAdmin() // if the database does not answer, the rest of the request fails too
	}
	if client.Admin {
		client.AcceptLanguage = ""
	}
	return client
}

// warnMissing logs, at most once a minute, that requests lack the header by which clients are counted.
func (s *Server) warnMissing(header string) {
	if s.missing.first(header, s.now()) {
		s.log.Warn("a request came without the header that limits count by", "header", header)
	}
}

package provider

import (
	"context"
	"sync"
	"time"
)

// staleTimeout is how long a caller waits for a new value if there is an expired one. After this time the caller gets
// the expired value.
const staleTimeout = 2 * time.Second

// cached is a value about an issuer, such as its keys, that is looked up again once it has expired.
type cached[V any] struct {
	d        *directory
	what, of string // name of the value and name of the issuer, for the log

	mu      sync.Mutex
	value   V
	has     bool
	until   time.Time     // when the value expires
	retry   time.Time     // after a failure: no look-up before this time
	err     error         // of the last look-up
	loading chan struct{} // closed when the look-up under way has ended
}

// get returns the value. If it has expired, the first caller starts the look-up, in a goroutine that is bounded by the
// time limit and not by the caller's request; other callers wait for it. The expired value stays in use if it cannot be
// renewed, or not within staleTimeout. If there is no value at all, a failure is returned to all callers for
// failurePause.
func (c *cached[V]) get(ctx context.Context, fetch func(context.Context) (V, error)) (V, error) {
	for {
		c.mu.Lock()
		now := c.d.now()
		switch {
		case c.has && (now.Before(c.until) || now.Before(c.retry)):
			defer c.mu.Unlock()
			return c.value, nil
		case now.Before(c.retry):
			defer c.mu.Unlock()
			return c.value, c.err
		}
		old, has, wait := c.value, c.has, c.loading
		if wait == nil {
			wait = make(chan struct{})
			c.loading = wait
			go c.load(context.WithoutCancel(ctx), fetch)
		}
		c.mu.Unlock()
		var enough <-chan time.Time
		if has {
			enough = time.After(staleTimeout)
		}
		select {
		case <-wait:
		case <-enough:
			return old, nil
		case <-ctx.Done():
			var none V
			return none, ctx.Err()
		}
	}
}

func (c *cached[V]) load(ctx context.Context, fetch func(context.Context) (V, error)) {
	ctx, cancel := context.WithTimeout(ctx, c.d.limit)
	defer cancel()
	v, err := fetch(ctx)

	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.loading)
	c.loading = nil
	now := c.d.now()
	c.err = err
	if err != nil {
		c.retry = now.Add(failurePause)
		c.d.log.Warn("an identity provider's "+c.what+" can't be fetched", "issuer", c.of, "error", err,
			"last_good_used", c.has)
		return
	}
	c.value, c.has, c.until, c.retry = v, true, now.Add(c.d.ttl), time.Time{}
}

// known reports whether there is a value, expired or not.
func (c *cached[V]) known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.has
}

// expire makes the value expire now if is(value) is true.
func (c *cached[V]) expire(is func(V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has && !c.until.IsZero() && is(c.value) {
		c.until = time.Time{}
	}
}

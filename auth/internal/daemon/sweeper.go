package daemon

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/store"
)

const (
	// sweepBatch is how many rows of one kind are removed in one transaction.
	sweepBatch = 500
	// sweepPause is the pause between two transactions, so that a backlog takes only a share of the database's time.
	sweepPause = 50 * time.Millisecond

	day = 24 * time.Hour
	// messagesKept is how long the command "auth mail list" shows the outcome of a message.
	messagesKept = 7 * day
)

// sweep removes rows that have expired, until ctx ends. Its pauses are of random length, so that replicas do not all
// sweep at the same time.
func (d *daemon) sweep(ctx context.Context) {
	pause := rand.N(min(time.Minute, d.config.Load().DB.CleanupEvery))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		d.checkMirror(ctx)
		c := d.config.Load()
		if c.DB.Cleanup {
			d.sweepOnce(ctx, c)
		}
		pause = c.DB.CleanupEvery/2 + rand.N(c.DB.CleanupEvery)
	}
}

func (d *daemon) sweepOnce(ctx context.Context, c *config.Config) {
	s := sweepAt(c, d.clock.Now().UTC())
	if !s.Anonymous.IsZero() && !c.DB.AnonymousChosen {
		// No sign-ups are accepted before a takeover is closed, so users created before that were carried over.
		m, err := d.db.Takeover(ctx)
		if s.AnonymousSince = m.ClosedAt; err != nil || m.Open {
			s.Anonymous = time.Time{}
		}
	}
	var removed int64
	var refused int
	var why error
	for {
		done, err := d.db.Sweep(ctx, s)
		removed += done.Removed
		refused += done.Refused
		why = cmp.Or(why, done.Why)
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("removing what has expired", "error", err)
			}
			break
		}
		if done.Busy || done.Cursor == uuid.Nil && done.Removed < sweepBatch/2 && done.Behind == s.Behind {
			break
		}
		s.Cursor, s.Behind = done.Cursor, done.Behind
		select {
		case <-ctx.Done():
		case <-time.After(sweepPause):
		}
		if ctx.Err() != nil {
			break
		}
	}
	if refused > 0 {
		d.log.Warn("anonymous users can't be removed, something of the application refers to them", "count", refused,
			"error", why)
	}
	if removed > 0 {
		d.log.Info("removed what has expired", "rows", removed)
	}
}

// sweepAt returns what has expired at the time now (docs/operations.md#sweeper). An ended session is kept until a day
// after its last access token has expired.
func sweepAt(c *config.Config, now time.Time) store.Sweep {
	s := store.Sweep{Now: now, Messages: now.Add(-messagesKept), Places: now.Add(-flow.PlaceLife),
		Challenges: now.Add(-day), Factors: now.Add(-max(day, c.Factors.FactorLife)),
		EndedBefore: now.Add(-max(day, c.JWT.Life)), Batch: sweepBatch}
	before := func(d time.Duration) time.Time {
		if d == 0 {
			return time.Time{}
		}
		return now.Add(-d - day)
	}
	s.CreatedBefore, s.ActiveBefore = before(c.Accounts.Sessions.Timebox), before(c.Accounts.Sessions.Inactivity)
	if c.DB.AuditRetention > 0 {
		s.Audit = now.Add(-c.DB.AuditRetention)
	}
	if c.Accounts.Anonymous && c.DB.AnonymousRetention > 0 {
		s.Anonymous = now.Add(-c.DB.AnonymousRetention)
	}
	return s
}

package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// noticeLife is for how long a notification is worth sending.
const noticeLife = 24 * time.Hour

// notification is a mail that only tells.
func (a *Accounts) notification(s *Settings, c Client, kind mail.Kind, to string, v mail.Vars, now time.Time) store.NewMessage {
	v.SiteURL = s.SiteURL
	return a.message(mail.ChannelEmail, string(kind), mail.Payload{To: to, Kind: kind, Vars: v, IP: s.hookIP(mail.ChannelEmail, c)}, now, now.Add(noticeLife))
}

// Notifications count against the budget for mails, and when that is used up nobody is told: what he
// wanted happens all the same. The budget is looked at before the transaction and taken from after it.
// Within it, taking would come after the lock on the user, where everybody else has it before, and the
// two would wait for each other; so a few at the same moment may overdraw.

// mayNotify says whether the budget has something left. Unless wanted it costs nothing.
func (a *Accounts) mayNotify(ctx context.Context, s *Settings, wanted bool) bool {
	if !wanted || !s.Email.Configured {
		return false
	}
	budget := s.Email.Sent.limit(a.limitKey("mail"))
	var levels []store.Level
	b := a.db.Batch()
	b.Levels(&levels, budget)
	if err := b.Send(ctx); err != nil {
		return false // and so will what was to be told of
	}
	if budget.Left(levels[0], a.now()) < 1 {
		a.log.Warn("a notification is not sent: the hourly limit for mails is used up")
		return false
	}
	return true
}

// notified takes n notifications from the budget.
func (a *Accounts) notified(ctx context.Context, s *Settings, n int) {
	if n == 0 {
		return
	}
	b := a.db.Batch()
	b.Take(s.Email.Sent.limit(a.limitKey("mail")), float64(n), a.now())
	err := b.Send(ctx)
	if _, over := errors.AsType[*store.LimitError](err); err != nil && !over {
		a.log.Warn("notifications were not counted", "count", n, "err", err)
	}
}

package account

import (
	"context"
	"time"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// notificationLife is for how long a notification is worth sending.
const notificationLife = 24 * time.Hour

// notification is a mail that only tells.
func notification(f *flow, kind mail.Kind, to string, v mail.Vars) store.NewMessage {
	v.SiteURL = f.settings.SiteURL
	return f.seal(mail.ChannelEmail, string(kind), mail.Payload{To: to, Kind: kind, Vars: v, IP: f.settings.hookIP(mail.ChannelEmail, f.req)}, f.now.Add(notificationLife))
}

// Notifications count against the budget for mails, and when that is used up nobody is told: what he
// wanted happens all the same. The budget is looked at before the transaction and taken from after it.
// Within it, taking would come after the lock on the user, where everybody else has it before, and the
// two would wait for each other; so a few at the same moment may overdraw.

// canNotify says whether the budget has something left. Unless wanted it costs nothing.
func canNotify(ctx context.Context, f *flow, wanted bool) bool {
	if !wanted || !f.settings.Email.Configured {
		return false
	}
	budget := f.settings.Email.Sent.limit(f.limitKey("mail"))
	var levels []store.Level
	b := f.batch()
	b.Levels(&levels, budget)
	if err := b.Send(ctx); err != nil {
		return false // and so will what was to be told of
	}
	if budget.Left(levels[0], f.core.now()) < 1 {
		f.core.log.Warn("a notification is not sent: the hourly limit for mails is used up")
		return false
	}
	return true
}

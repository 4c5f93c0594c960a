package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// Quota holds the limits of a mail or SMS: pauses between messages to one address, which apply to unknown addresses
// too, or between changes of one user, and budgets of the whole service. They are read first, so that nothing is hashed
// or built in vain, and taken in the transaction, which decides.
type Quota struct {
	sms     bool
	Pauses  []store.Limit
	Budgets []store.Limit
	// barred is the answer if messages to the address are not allowed. It is checked between pauses and budgets.
	barred *refusal.Refusal
	levels []store.Level
	// at finds out whether the caller is in a place from which the owner of the address has signed in; nil: places do
	// not count.
	at *callerPlace
}

// callerPlace is the place of the caller who requests a mail. It is known if the owner of the address has signed in
// from there. Then the place's pauses apply instead of the address's, so that a stranger's requests do not delay the
// owner's mails.
type callerPlace struct {
	owner  store.UserAt
	pauses []store.Limit
	known  bool
}

// Apart gives the owner of an address separate pauses in places from which the owner has signed in before. Tokens are
// only replaced by tokens of the same place: see Mark.
func (q *Quota) Apart(f *Flow, aud, owner string) *Quota {
	at := &callerPlace{owner: store.UserAt{Aud: aud, Address: owner,
		Place: store.Place{MAC: PlaceMAC(f), Since: f.Now.Add(-PlaceLife)}}}
	if at.owner.Place.MAC == nil {
		return q
	}
	for _, l := range q.Pauses {
		at.pauses = append(at.pauses, PauseAt(f, l))
	}
	q.at = at
	return q
}

// PauseAt returns the pause that applies in the client's place if the place is known.
func PauseAt(f *Flow, l store.Limit) store.Limit {
	l.Key = f.LimitKey("at place", string(l.Key), f.Req.place())
	return l
}

// IsKnown reports whether the caller is in a known place.
func (q *Quota) IsKnown() bool { return q.at != nil && q.at.known }

// Mark sets the known place of a token, except of sign-ups, which are kept together whatever their place.
func (q *Quota) Mark(t *store.NewToken) {
	if q.IsKnown() && t.Kind != store.KindSignup {
		t.Place = q.at.owner.Place.MAC
	}
}

// MailQuota returns the quota of a mail about the addresses. name is the name of the pause: mails with different names
// do not delay each other.
func MailQuota(f *Flow, name string, pause time.Duration, aud string, addresses ...string) *Quota {
	q := &Quota{}
	for _, to := range addresses {
		q.Pause(f, pause, name, aud, to)
		if !f.Settings.Email.isAuthorized(to) {
			q.barred = refusal.Invalid(refusal.CodeEmailNotAuthorized,
				fmt.Sprintf("Email address %q cannot be used as it is not authorized", to))
		}
	}
	q.Budgets = []store.Limit{f.Settings.Email.Sent.limit(f.LimitKey("mail"))}
	return q
}

// Pause adds a pause for what the parts of a key name; 0 is none.
func (q *Quota) Pause(f *Flow, pause time.Duration, key ...string) {
	if pause > 0 {
		q.Pauses = append(q.Pauses, store.NewInterval(f.LimitKey(key...), pause))
	}
}

// isAuthorized reports whether the allow list has the address. Labels after a plus are ignored.
func (e *EmailSettings) isAuthorized(to string) bool {
	return len(e.Authorized) == 0 || slices.ContainsFunc(e.Authorized, func(listed string) bool {
		return strings.EqualFold(withoutLabel(listed), withoutLabel(to))
	})
}

func withoutLabel(email string) string {
	local, domain, _ := strings.Cut(email, "@")
	local, _, _ = strings.Cut(local, "+")
	return local + "@" + domain
}

// SMSQuota returns the quota of an SMS. Only the pause applies to a test number, which gets no SMS.
func SMSQuota(f *Flow, aud, number string) *Quota {
	q := &Quota{sms: true}
	q.Pause(f, f.Settings.Phone.Interval, "phone", aud, number)
	if _, test := f.Settings.Phone.TestCode(number, f.Now); test {
		return q
	}
	q.Budgets = []store.Limit{f.Settings.Phone.Sent.limit(f.LimitKey("sms"))}
	if f.Settings.Phone.PerNumber.N > 0 {
		q.Budgets = append(q.Budgets, f.Settings.Phone.PerNumber.limit(f.LimitKey("sms number", number)))
	}
	if f.Settings.Phone.PerPrefix.N > 0 {
		// Numbers are rented in blocks, so numbers that differ only in the last four digits share a bucket.
		q.Budgets = append(q.Budgets, f.Settings.Phone.PerPrefix.limit(f.LimitKey("sms prefix",
			number[:max(0, len(number)-4)])))
	}
	return q
}

// BoundClient limits an identified client to its share of the service's budget, for all routes together that need no
// token. A user's token makes no difference; an administrator's token lifts the limit.
func BoundClient(f *Flow, q *Quota) *Quota {
	if f.Req.Admin {
		return q
	}
	return q.bound(f, "client", f.Req.Network)
}

// BoundUser limits a user to the same share, for all routes together that need a token, whatever clients send the
// requests.
func BoundUser(f *Flow, q *Quota, by *Principal) *Quota {
	if slices.Contains(f.Settings.AdminRoles, by.Claims.Role) {
		return q
	}
	return q.bound(f, "user", by.User.ID.String())
}

// bound appends the limit of a share, after the service's budget: limits are always taken in the same order.
func (q *Quota) bound(f *Flow, by, who string) *Quota {
	if f.Settings.SentPerClient <= 0 || who == "" || len(q.Budgets) == 0 {
		return q
	}
	name, sent := "mail by "+by, f.Settings.Email.Sent
	if q.sms {
		name, sent = "sms by "+by, f.Settings.Phone.Sent
	}
	sent.N = max(1, sent.N*f.Settings.SentPerClient)
	q.Budgets = append(q.Budgets, sent.limit(f.LimitKey(name, who)))
	return q
}

// All returns the pauses, then the budgets.
func (q *Quota) All() []store.Limit {
	return append(q.Pauses[:len(q.Pauses):len(q.Pauses)], q.Budgets...)
}

// Look adds the statement that reads the levels of all limits.
func (q *Quota) Look(b *Batch) {
	if at := q.at; at != nil {
		b.LevelsAt(&q.levels, &at.known, at.owner, append(q.All(), at.pauses...)...)
		return
	}
	b.Levels(&q.levels, q.All()...)
}

// pick replaces the pauses by the place's, if Look has found that the place is known.
func (q *Quota) pick() {
	if q.IsKnown() && q.at.pauses != nil {
		copy(q.levels, q.levels[len(q.All()):])
		q.Pauses, q.at.pauses = q.at.pauses, nil
	}
}

// Check refuses if Look has found a limit used up: pauses first, then a barred address, then budgets.
func (q *Quota) Check(now time.Time) error {
	q.pick()
	for i, l := range q.All() {
		if i == len(q.Pauses) && q.barred != nil {
			return q.barred
		}
		if wait := l.Wait(q.levels[i], now, 1); wait > 0 {
			return q.refuse(i < len(q.Pauses), wait)
		}
	}
	if q.barred != nil {
		return q.barred
	}
	return nil
}

// LookUp reads the levels of all limits and then what reads add, and refuses like Check.
func (q *Quota) LookUp(ctx context.Context, f *Flow, reads ...func(*Batch)) error {
	b := f.Batch()
	q.Look(b)
	for _, read := range reads {
		read(b)
	}
	if err := b.Send(ctx); err != nil {
		return refusal.Failure("look up", err)
	}
	f.Tick()
	return q.Check(f.Now)
}

// Take adds the statements that take from all limits. They are the same if nothing is sent because no account has the
// address; otherwise the next request would reveal that. others are the pauses of other recipients. Pauses are taken in
// the order of their keys, so that two calls about the same two addresses do not deadlock.
func (q *Quota) Take(b *Batch, now time.Time, others ...store.Limit) {
	pauses := slices.Concat(q.Pauses, others)
	slices.SortFunc(pauses, func(x, y store.Limit) int { return bytes.Compare(x.Key, y.Key) })
	for _, l := range append(pauses, q.Budgets...) {
		b.Take(l, 1, now)
	}
}

// GiveBack undoes a Take of the same transaction, which commits although nothing is sent.
func (q *Quota) GiveBack(b *Batch, now time.Time) {
	for _, l := range q.All() {
		b.Take(l, -1, now)
	}
}

// RefusalOf returns the refusal for the error of a batch with Take, if another request has used up the limit since
// Look.
func (q *Quota) RefusalOf(err error) error {
	if l, ok := Among(q.Pauses, err); ok {
		return q.refuse(true, l.Refill)
	}
	if l, ok := Among(q.Budgets, err); ok {
		return q.refuse(false, l.Wait(store.Level{At: time.Unix(1, 0)}, time.Unix(1, 0), 1))
	}
	return err
}

// Among returns the limit of a list at which a batch failed.
func Among(list []store.Limit, err error) (store.Limit, bool) {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		for _, l := range list {
			if bytes.Equal(l.Key, over.Limit.Key) {
				return l, true
			}
		}
	}
	return store.Limit{}, false
}

// refuse returns the refusal, in the words from which applications read the number of seconds.
func (q *Quota) refuse(pause bool, wait time.Duration) *refusal.Refusal {
	code, what := refusal.CodeOverEmailSendRate, "email rate limit exceeded"
	if q.sms {
		code, what = refusal.CodeOverSMSSendRate, "SMS rate limit exceeded"
	}
	r := refusal.Limited(code, what, wait)
	if pause {
		r.Msg = fmt.Sprintf("For security purposes, you can only request this after %d seconds.",
			int(r.RetryAfter.Seconds()))
	}
	return r
}

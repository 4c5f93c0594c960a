package flow

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// Quota holds the limits that a mail or SMS is under: pauses between two to the same address, which an unknown one has
// too, and budgets of the whole service. They are read first, so that nothing is hashed or built in vain, and taken
// with the commit, which decides.
type Quota struct {
	sms     bool
	Pauses  []store.Limit
	Budgets []store.Limit
	// barred is the answer, checked between the two, if the address may not be written to.
	barred *refusal.Refusal
	levels []store.Level
	// at finds out whether the caller is in a place from which the owner of an address has signed in; nil: not asked.
	at *callerPlace
}

// callerPlace is where the caller of a mail is, known if the owner of the address has signed in from there. Its pauses
// are in force instead of the address's then, so that a stranger's requests do not keep the owner from sending.
type callerPlace struct {
	owner  store.UserAt
	pauses []store.Limit
	known  bool
}

// Apart gives the owner of an address pauses of its own where it has signed in before. Tokens are replaced only by
// those of the same place: see mark.
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

// PauseAt returns the pause that is in force in the client's place if that is known.
func PauseAt(f *Flow, l store.Limit) store.Limit {
	l.Key = f.LimitKey("at place", string(l.Key), f.Req.place())
	return l
}

// IsKnown reports whether the caller is in a known place.
func (q *Quota) IsKnown() bool { return q.at != nil && q.at.known }

// Mark notes the known place in a token. Sign-ups of all places live next to each other.
func (q *Quota) Mark(t *store.NewToken) {
	if q.IsKnown() && t.Kind != store.KindSignup {
		t.Place = q.at.owner.Place.MAC
	}
}

// MailQuota returns the quota of a mail about these addresses. name is the name of the pause, so that one kind of mail
// does not delay another.
func MailQuota(f *Flow, name string, pause time.Duration, aud string, addresses ...string) *Quota {
	q := &Quota{}
	if pause > 0 {
		for _, to := range addresses {
			q.Pauses = append(q.Pauses, store.NewInterval(f.LimitKey(name, aud, to), pause))
		}
	}
	for _, to := range addresses {
		if !f.Settings.Email.isAuthorized(to) {
			q.barred = refusal.Invalid(refusal.CodeEmailNotAuthorized,
				fmt.Sprintf("Email address %q cannot be used as it is not authorized", to))
		}
	}
	q.Budgets = []store.Limit{f.Settings.Email.Sent.limit(f.LimitKey("mail"))}
	return q
}

// isAuthorized reports whether the allow list has the address. Labels after a plus do not count.
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

// SMSQuota returns the quota of an SMS. A test number gets none, so only the pause applies to it.
func SMSQuota(f *Flow, aud, number string) *Quota {
	q := &Quota{sms: true}
	if f.Settings.Phone.Interval > 0 {
		q.Pauses = []store.Limit{store.NewInterval(f.LimitKey("phone", aud, number), f.Settings.Phone.Interval)}
	}
	if _, test := f.Settings.Phone.TestCode(number, f.Now); test {
		return q
	}
	q.Budgets = []store.Limit{f.Settings.Phone.Sent.limit(f.LimitKey("sms"))}
	if f.Settings.Phone.PerNumber.N > 0 {
		q.Budgets = append(q.Budgets, f.Settings.Phone.PerNumber.limit(f.LimitKey("sms number", number)))
	}
	if f.Settings.Phone.PerPrefix.N > 0 {
		// Numbers are rented in blocks: those that differ in their last four digits share a bucket.
		q.Budgets = append(q.Budgets, f.Settings.Phone.PerPrefix.limit(f.LimitKey("sms prefix",
			number[:max(0, len(number)-4)])))
	}
	return q
}

// BoundClient limits a client that limits can identify to its share of the service's budget, for all routes together
// that need no token. A user's token makes no difference, an administrator's lifts the limit.
func BoundClient(f *Flow, q *Quota) *Quota {
	if f.Req.Admin {
		return q
	}
	return q.bound(f, "client", f.Req.Network)
}

// BoundUser limits a user to such a share, for all routes together that need a token, wherever the requests come from.
func BoundUser(f *Flow, q *Quota, by *Principal) *Quota {
	if slices.Contains(f.Settings.AdminRoles, by.Claims.Role) {
		return q
	}
	return q.bound(f, "user", by.User.ID.String())
}

// bound comes after the service's budget: the order of taking is the same everywhere.
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

// Look adds the reading of the levels.
func (q *Quota) Look(b *Batch) {
	if at := q.at; at != nil {
		b.LevelsAt(&q.levels, &at.known, at.owner, append(q.All(), at.pauses...)...)
		return
	}
	b.Levels(&q.levels, q.All()...)
}

// pick puts the pauses of the place in force, if look has found that it is known.
func (q *Quota) pick() {
	if q.IsKnown() && q.at.pauses != nil {
		copy(q.levels, q.levels[len(q.All()):])
		q.Pauses, q.at.pauses = q.at.pauses, nil
	}
}

// Check refuses what look has found used up: pauses first, then a barred address, then budgets.
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

// Take adds the taking, which is the same if nothing will be sent because no account has the address: else the next
// request would reveal it. others are pauses of other addresses that are written to. Pauses are taken in the order of
// their keys, or two calls about the same two addresses would deadlock.
func (q *Quota) Take(b *Batch, now time.Time, others ...store.Limit) {
	pauses := slices.Concat(q.Pauses, others)
	slices.SortFunc(pauses, func(x, y store.Limit) int { return bytes.Compare(x.Key, y.Key) })
	for _, l := range pauses {
		b.Take(l, 1, now)
	}
	for _, l := range q.Budgets {
		b.Take(l, 1, now)
	}
}

// GiveBack undoes a take of the same transaction, which commits although nothing is sent.
func (q *Quota) GiveBack(b *Batch, now time.Time) {
	for _, l := range q.All() {
		b.Take(l, -1, now)
	}
}

// RefusalOf returns the refusal for the error of a batch that take was part of: another request has used up the limit
// since look.
func (q *Quota) RefusalOf(err error) error {
	if l, ok := Among(q.Pauses, err); ok {
		return q.refuse(true, l.Refill)
	}
	if l, ok := Among(q.Budgets, err); ok {
		return q.refuse(false, l.Wait(store.Level{At: time.Unix(1, 0)}, time.Unix(1, 0), 1))
	}
	return err
}

// Among returns the limit in a list that a batch failed at.
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

// refuse returns the refusal, in the words that applications read the number from.
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

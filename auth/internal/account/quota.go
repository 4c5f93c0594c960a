package account

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/store"
)

// quota holds the limits that a mail or SMS is under: pauses between two to the same address, which an unknown one has
// too, and budgets of the whole service. They are read first, so that nothing is hashed or built in vain, and taken
// with the commit, which decides.
type quota struct {
	sms     bool
	pauses  []store.Limit
	budgets []store.Limit
	// barred is the answer, checked between the two, if the address may not be written to.
	barred *Refusal
	levels []store.Level
	// at finds out whether the caller is in a place from which the owner of an address has signed in; nil: not asked.
	at *callerPlace
}

// callerPlace is where the caller of a mail is, known if the owner of the address has signed in from there. Its pauses
// are in force instead of the address's then, so that a stranger's requests do not keep the owner from sending.
type callerPlace struct {
	aud, owner string
	place      store.Place
	pauses     []store.Limit
	known      bool
}

// apart gives the owner of an address pauses of its own where it has signed in before. Tokens are replaced only by
// those of the same place: see mark.
func (q *quota) apart(f *flow, aud, owner string) *quota {
	at := &callerPlace{aud: aud, owner: owner, place: store.Place{MAC: placeMAC(f), Since: f.now.Add(-PlaceLife)}}
	if at.place.MAC == nil {
		return q
	}
	for _, l := range q.pauses {
		at.pauses = append(at.pauses, pauseAt(f, l))
	}
	q.at = at
	return q
}

// pauseAt returns the pause that is in force in the client's place if that is known.
func pauseAt(f *flow, l store.Limit) store.Limit {
	l.Key = f.limitKey("at place", string(l.Key), f.req.place())
	return l
}

// isKnown reports whether the caller is in a known place.
func (q *quota) isKnown() bool { return q.at != nil && q.at.known }

// mark notes the known place in a token. Sign-ups of all places live next to each other.
func (q *quota) mark(t *store.NewToken) {
	if q.isKnown() && t.Kind != store.KindSignup {
		t.Place = q.at.place.MAC
	}
}

// mailQuota returns the quota of a mail about these addresses. name is the name of the pause, so that one kind of mail
// does not delay another.
func mailQuota(f *flow, name string, pause time.Duration, aud string, addresses ...string) *quota {
	q := &quota{}
	if pause > 0 {
		for _, to := range addresses {
			q.pauses = append(q.pauses, store.NewInterval(f.limitKey(name, aud, to), pause))
		}
	}
	for _, to := range addresses {
		if !f.settings.Email.isAuthorized(to) {
			q.barred = invalid(CodeEmailNotAuthorized,
				fmt.Sprintf("Email address %q cannot be used as it is not authorized", to))
		}
	}
	q.budgets = []store.Limit{f.settings.Email.Sent.limit(f.limitKey("mail"))}
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

// smsQuota returns the quota of an SMS. A test number gets none, so only the pause applies to it.
func smsQuota(f *flow, aud, number string) *quota {
	q := &quota{sms: true}
	if f.settings.Phone.Interval > 0 {
		q.pauses = []store.Limit{store.NewInterval(f.limitKey("phone", aud, number), f.settings.Phone.Interval)}
	}
	if _, test := f.settings.Phone.testCode(number, f.now); test {
		return q
	}
	q.budgets = []store.Limit{f.settings.Phone.Sent.limit(f.limitKey("sms"))}
	if f.settings.Phone.PerNumber.N > 0 {
		q.budgets = append(q.budgets, f.settings.Phone.PerNumber.limit(f.limitKey("sms number", number)))
	}
	if f.settings.Phone.PerPrefix.N > 0 {
		// Numbers are rented in blocks: those that differ in their last four digits share a bucket.
		q.budgets = append(q.budgets, f.settings.Phone.PerPrefix.limit(f.limitKey("sms prefix",
			number[:max(0, len(number)-4)])))
	}
	return q
}

// boundClient limits a client that limits can identify to its share of the service's budget, for all routes together
// that need no token. A user's token makes no difference, an administrator's lifts the limit.
func boundClient(f *flow, q *quota) *quota {
	if f.req.Admin {
		return q
	}
	return q.bound(f, "client", f.req.Network)
}

// boundUser limits a user to such a share, for all routes together that need a token, wherever the requests come from.
func boundUser(f *flow, q *quota, by *Principal) *quota {
	if slices.Contains(f.settings.AdminRoles, by.Claims.Role) {
		return q
	}
	return q.bound(f, "user", by.User.ID.String())
}

// bound comes after the service's budget: the order of taking is the same everywhere.
func (q *quota) bound(f *flow, by, who string) *quota {
	if f.settings.SentPerClient <= 0 || who == "" || len(q.budgets) == 0 {
		return q
	}
	name, sent := "mail by "+by, f.settings.Email.Sent
	if q.sms {
		name, sent = "sms by "+by, f.settings.Phone.Sent
	}
	sent.N = max(1, sent.N*f.settings.SentPerClient)
	q.budgets = append(q.budgets, sent.limit(f.limitKey(name, who)))
	return q
}

// testCode returns the fixed code of a test number.
func (p *PhoneSettings) testCode(number string, now time.Time) (string, bool) {
	code, ok := p.TestCodes[number]
	return code, ok && (p.TestUntil.IsZero() || now.Before(p.TestUntil))
}

func (q *quota) all() []store.Limit {
	return append(q.pauses[:len(q.pauses):len(q.pauses)], q.budgets...)
}

// look adds the reading of the levels.
func (q *quota) look(b *batch) {
	if at := q.at; at != nil {
		b.LevelsAt(&q.levels, &at.known, at.aud, at.owner, at.place, append(q.all(), at.pauses...)...)
		return
	}
	b.Levels(&q.levels, q.all()...)
}

// pick puts the pauses of the place in force, if look has found that it is known.
func (q *quota) pick() {
	if q.isKnown() && q.at.pauses != nil {
		copy(q.levels, q.levels[len(q.all()):])
		q.pauses, q.at.pauses = q.at.pauses, nil
	}
}

// check refuses what look has found used up: pauses first, then a barred address, then budgets.
func (q *quota) check(now time.Time) error {
	q.pick()
	for i, l := range q.all() {
		if i == len(q.pauses) && q.barred != nil {
			return q.barred
		}
		if wait := l.Wait(q.levels[i], now, 1); wait > 0 {
			return q.refuse(i < len(q.pauses), wait)
		}
	}
	if q.barred != nil {
		return q.barred
	}
	return nil
}

// take adds the taking, which is the same if nothing will be sent because no account has the address: else the next
// request would reveal it. others are pauses of other addresses that are written to. Pauses are taken in the order of
// their keys, or two calls about the same two addresses would deadlock.
func (q *quota) take(b *batch, now time.Time, others ...store.Limit) {
	pauses := slices.Concat(q.pauses, others)
	slices.SortFunc(pauses, func(x, y store.Limit) int { return bytes.Compare(x.Key, y.Key) })
	for _, l := range pauses {
		b.Take(l, 1, now)
	}
	for _, l := range q.budgets {
		b.Take(l, 1, now)
	}
}

// giveBack undoes a take of the same transaction, which commits although nothing is sent.
func (q *quota) giveBack(b *batch, now time.Time) {
	for _, l := range q.all() {
		b.Take(l, -1, now)
	}
}

// refusalOf returns the refusal for the error of a batch that take was part of: another request has used up the limit
// since look.
func (q *quota) refusalOf(err error) error {
	if l, ok := among(q.pauses, err); ok {
		return q.refuse(true, l.Refill)
	}
	if l, ok := among(q.budgets, err); ok {
		return q.refuse(false, l.Wait(store.Level{At: time.Unix(1, 0)}, time.Unix(1, 0), 1))
	}
	return err
}

// among returns the limit in a list that a batch failed at.
func among(list []store.Limit, err error) (store.Limit, bool) {
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
func (q *quota) refuse(pause bool, wait time.Duration) *Refusal {
	code, what := CodeOverEmailSendRate, "email rate limit exceeded"
	if q.sms {
		code, what = CodeOverSMSSendRate, "SMS rate limit exceeded"
	}
	r := limited(code, what, wait)
	if pause {
		r.Msg = fmt.Sprintf("For security purposes, you can only request this after %d seconds.",
			int(r.RetryAfter.Seconds()))
	}
	return r
}

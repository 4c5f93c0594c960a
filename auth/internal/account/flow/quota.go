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

// Quota holds the limits that a mail or SMS counts against: pauses between messages to one address, which apply to
// unknown addresses too, or between changes of one user; and budgets of the whole service. The limits are first only
// read, so that nothing is hashed or built in vain. Then the transaction that writes the message takes from them, which
// decides.
type Quota struct {
	sms     bool
	Pauses  []store.Limit
	Budgets []store.Limit
	// barred is the refusal if the operator's list of addresses (EXTERNAL_EMAIL_AUTHORIZED_ADDRESSES) does not allow
	// the address. It is checked between pauses and budgets.
	barred *refusal.Refusal
	levels []store.Level
	// at holds the separate pauses for clients in a network from which the owner of the address has signed in; nil: the
	// network does not matter.
	at *callerPlace
}

// callerPlace is the network (the place) of the client who requests a mail. known is set if the owner of the address
// has signed in from it. Then pauses of the place apply instead of the address's, so that a stranger's requests from
// elsewhere do not delay the owner's mails.
type callerPlace struct {
	owner  store.UserAt
	pauses []store.Limit
	known  bool
}

// Apart gives the owner of an address separate pauses for each network (place) from which the owner has signed in
// before. A token is replaced only by a token that was requested from the same place, for which Mark stores the place.
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

// PauseAt returns the separate pause that replaces l if the client's place is known.
func PauseAt(f *Flow, l store.Limit) store.Limit {
	l.Key = f.LimitKey("at place", string(l.Key), f.Req.place())
	return l
}

// IsKnown reports whether the owner of the address has signed in from the client's network before.
func (q *Quota) IsKnown() bool { return q.at != nil && q.at.known }

// Mark stores the known place in a token. Tokens of sign-ups have no place: they are kept together whatever network
// they were requested from.
func (q *Quota) Mark(t *store.NewToken) {
	if q.IsKnown() && t.Kind != store.KindSignup {
		t.Place = q.at.owner.Place.MAC
	}
}

// MailQuota returns the quota of a mail about the addresses. Mails with the same name share the pause between mails;
// mails with different names do not delay each other.
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

// Pause adds a pause to the quota. key names what the pause is for, such as an address. A pause of 0 adds nothing.
func (q *Quota) Pause(f *Flow, pause time.Duration, key ...string) {
	if pause > 0 {
		q.Pauses = append(q.Pauses, store.NewInterval(f.LimitKey(key...), pause))
	}
}

// isAuthorized reports whether the operator allows mails to the address. Labels such as +news in the local part are
// ignored.
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

// SMSQuota returns the quota of an SMS to number. A test number, which gets no SMS, has only the pause.
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

// BoundClient limits a client, if its network is known, to its share (SentPerClient) of the service's budget. All
// routes that need no token share this limit. A user's token makes no difference; an administrator's token lifts the
// limit.
func BoundClient(f *Flow, q *Quota) *Quota {
	if f.Req.Admin {
		return q
	}
	return q.bound(f, "client", f.Req.Network)
}

// BoundUser limits a user to the share SentPerClient of the service's budget. All routes that need a token share this
// limit, whichever clients the user's requests come from. Administrators are not limited.
func BoundUser(f *Flow, q *Quota, by *Principal) *Quota {
	if slices.Contains(f.Settings.AdminRoles, by.Claims.Role) {
		return q
	}
	return q.bound(f, "user", by.User.ID.String())
}

// bound appends the limit of one client's or user's share. It comes after the service's budget: all flows take from
// limits in the same order.
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

// All returns the pauses followed by the budgets.
func (q *Quota) All() []store.Limit {
	return append(q.Pauses[:len(q.Pauses):len(q.Pauses)], q.Budgets...)
}

// Look adds the statement that reads how much of each limit is left.
func (q *Quota) Look(b *Batch) {
	if at := q.at; at != nil {
		b.LevelsAt(&q.levels, &at.known, at.owner, append(q.All(), at.pauses...)...)
		return
	}
	b.Levels(&q.levels, q.All()...)
}

// pick replaces the address's pauses by the place's, if Look has found that the place is known.
func (q *Quota) pick() {
	if q.IsKnown() && q.at.pauses != nil {
		copy(q.levels, q.levels[len(q.All()):])
		q.Pauses, q.at.pauses = q.at.pauses, nil
	}
}

// Check returns a refusal if Look has found that a limit is used up, or if the address is barred. It checks the pauses
// first, then whether the address is barred, then the budgets.
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

// LookUp reads what is left of all limits and then returns what Check returns. The functions in reads add further
// statements to the same round trip.
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

// Take adds the statements that count one message against each limit. They are sent even if no account has the address
// and so no message is sent; otherwise the answer to the next request would reveal that. others are the pauses of other
// recipients. Pauses are changed in the order of their keys, so that two calls about the same two addresses do not
// deadlock.
func (q *Quota) Take(b *Batch, now time.Time, others ...store.Limit) {
	pauses := slices.Concat(q.Pauses, others)
	slices.SortFunc(pauses, func(x, y store.Limit) int { return bytes.Compare(x.Key, y.Key) })
	for _, l := range append(pauses, q.Budgets...) {
		b.Take(l, 1, now)
	}
}

// GiveBack adds the statements that undo Take. It is used in the same transaction, if the transaction commits although
// nothing is sent.
func (q *Quota) GiveBack(b *Batch, now time.Time) {
	for _, l := range q.All() {
		b.Take(l, -1, now)
	}
}

// RefusalOf returns the refusal for the error of a batch with Take, if another request has used up a limit since Look.
// It returns other errors unchanged.
func (q *Quota) RefusalOf(err error) error {
	if l, ok := Among(q.Pauses, err); ok {
		return q.refuse(true, l.Refill)
	}
	if l, ok := Among(q.Budgets, err); ok {
		return q.refuse(false, l.Wait(store.Level{At: time.Unix(1, 0)}, time.Unix(1, 0), 1))
	}
	return err
}

// Among returns the limit in list that was used up, if err is the error of a batch that failed for this reason.
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

// refuse returns the refusal because of a pause or a budget. Applications parse the number of seconds in the text about
// a pause.
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

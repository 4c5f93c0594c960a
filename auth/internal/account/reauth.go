package account

import (
	"context"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Reauthenticate sends the caller digits that prove he still reads his mail, or his phone. They are the nonce of a
// new password.
func (a *Accounts) Reauthenticate(ctx context.Context, c Client, caller Caller) error {
	s, now := a.live.Load(), a.now()
	u := caller.User
	var err error
	var q *quota
	switch {
	case u.Email == "" && u.Phone == "":
		return notValid("Reauthentication requires the user to have an email or a phone number")
	case u.Email != "" && u.EmailConfirmedAt.IsZero():
		return unprocessable(CodeEmailNotConfirmed, "Please verify your email first.")
	case u.Email == "" && u.PhoneConfirmedAt.IsZero():
		return unprocessable(CodePhoneNotConfirmed, "Please verify your phone first.")
	case u.Email != "":
		err = s.canSendMail("reauthentication")
		q = a.mailQuota(s, "reauthentication", s.Email.Interval, u.Aud, u.Email)
	default:
		err = a.canSendSMS(s, "reauthentication", u.Phone)
		q = a.smsQuota(s, u.Aud, u.Phone, now)
	}
	if err != nil {
		return err
	}
	b := a.db.Batch()
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	if err := q.judge(now); err != nil {
		return err
	}
	var l letter
	if u.Email != "" {
		l, err = a.mail(s, c, mailed{
			kind: store.KindReauthentication, mail: mail.Reauthentication, to: u.Email, vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		}, now)
	} else {
		l, err = a.sms(s, c, store.KindReauthentication, u.Phone, "", now)
	}
	if err != nil {
		return err
	}
	b = a.db.Batch()
	q.take(b, now)
	b.MarkSent(u.ID, store.ReauthenticationSent, now)
	write(b, u.ID, nil, l)
	b.Audit(store.Audit{At: now, Action: store.ActionUserReauthenticateRequested, Actor: u.ID, Session: caller.Session.ID, IP: c.IP})
	if err := b.Send(ctx); err != nil {
		return failure("reauthenticate", q.refused(err))
	}
	return a.send(ctx, s, l)
}

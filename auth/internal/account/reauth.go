package account

import (
	"context"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Reauthenticate sends the user digits that prove access to the mailbox or phone. They are the nonce of a new password.
func (a *Accounts) Reauthenticate(ctx context.Context, req RequestInfo, principal Principal) error {
	f := a.begin(req)
	u := principal.User
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
		err = f.settings.checkMailSendable("reauthentication")
		q = mailQuota(f, "reauthentication", f.settings.Email.Interval, u.Aud, u.Email)
	default:
		err = checkSMSSendable(f, "reauthentication", u.Phone)
		q = smsQuota(f, u.Aud, u.Phone)
	}
	if err != nil {
		return err
	}
	b := f.batch()
	boundUser(f, q, &principal).look(b)
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	if err := q.check(f.now); err != nil {
		return err
	}
	var msg outgoing
	if u.Email != "" {
		msg, err = newMail(f, mailSpec{
			kind: store.KindReauthentication, mail: mail.Reauthentication, to: u.Email,
			vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		})
	} else {
		msg, err = newSMS(f, store.KindReauthentication, u.Phone, "", u.UserMetadata)
	}
	if err != nil {
		return err
	}
	b = f.batch()
	q.take(b, f.now)
	b.MarkSent(u.ID, store.ReauthenticationSent, f.now)
	insertOutgoing(b, u.ID, nil, msg)
	b.Audit(f.audit(store.ActionUserReauthenticateRequested, u.ID, principal.Session.ID))
	return failure("reauthenticate", q.refusalOf(f.send(ctx, b)))
}

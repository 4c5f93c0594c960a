package account

import (
	"context"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Reauthenticate sends a one-time code to the user's mailbox or phone. The user enters it as the nonce of a new
// password, which proves access to the address again.
func (a *Accounts) Reauthenticate(ctx context.Context, req flow.RequestInfo, principal flow.Principal) error {
	f := a.core.Begin(req)
	u := principal.User
	var err error
	var q *flow.Quota
	switch {
	case u.Email == "" && u.Phone == "":
		return refusal.NotValid("Reauthentication requires the user to have an email or a phone number")
	case u.Email != "" && u.EmailConfirmedAt.IsZero():
		return refusal.Unprocessable(refusal.CodeEmailNotConfirmed, "Please verify your email first.")
	case u.Email == "" && u.PhoneConfirmedAt.IsZero():
		return refusal.Unprocessable(refusal.CodePhoneNotConfirmed, "Please verify your phone first.")
	case u.Email != "":
		err = f.Settings.CheckMailSendable("reauthentication")
		q = flow.MailQuota(f, "reauthentication", f.Settings.Email.Interval, u.Aud, u.Email)
	default:
		err = flow.CheckSMSSendable(f, "reauthentication", u.Phone)
		q = flow.SMSQuota(f, u.Aud, u.Phone)
	}
	if err != nil {
		return err
	}
	if err := flow.BoundUser(f, q, &principal).LookUp(ctx, f); err != nil {
		return err
	}
	var msg flow.Outgoing
	if u.Email != "" {
		msg, err = flow.NewMail(f, flow.MailSpec{
			Kind: store.KindReauthentication, Mail: mail.Reauthentication, To: u.Email,
			Vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		})
	} else {
		msg, err = flow.NewSMS(f, store.KindReauthentication, flow.Phone{Number: u.Phone, Metadata: u.UserMetadata})
	}
	if err != nil {
		return err
	}
	b := f.Batch()
	q.Take(b, f.Now)
	b.MarkSent(u.ID, store.ReauthenticationSent, f.Now)
	flow.InsertOutgoing(b, u.ID, nil, msg)
	b.Audit(f.Audit(store.ActionUserReauthenticateRequested, u.ID, principal.Session.ID))
	return refusal.Failure("reauthenticate", q.RefusalOf(f.Send(ctx, b)))
}

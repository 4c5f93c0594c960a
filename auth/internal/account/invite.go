package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Invite creates a user without a password and mails a link to the user. A user who is not confirmed yet is invited
// again and keeps the metadata. The mail counts against the hourly budget for mails. No pause delays it, but it begins
// the pause before the next confirmation to the address.
func (a *Accounts) Invite(ctx context.Context, req flow.RequestInfo, by flow.Actor,
	p flow.Invitation) (store.User, error) {
	f := a.core.Begin(req)
	cand := &signupCandidate{aud: f.Aud(), provider: "email"}
	err := flow.CheckClaimLengths("", cand.aud)
	if err != nil {
		return store.User{}, err
	}
	if cand.address, err = flow.ParseEmail(p.Email); err != nil {
		return store.User{}, err
	}
	if cand.data, err = flow.Metadata(p.Data); err != nil {
		return store.User{}, err
	}
	if f.Settings.IsTooLarge(cand.data, nil) {
		return store.User{}, f.Settings.ErrTooLarge()
	}
	if err := f.Settings.CheckMailSendable("invite"); err != nil {
		return store.User{}, err
	}
	q := flow.MailQuota(f, "invite", 0, cand.aud, cand.address)
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, cand, q)
		if err != nil {
			return store.User{}, err
		}
		state := cand.state(known)
		if state == addressTaken {
			return store.User{}, flow.ErrEmailExists
		}
		msg, err := newInvitation(f, cand, known)
		if err != nil {
			return store.User{}, err
		}
		msg.Token.Required = state == addressPending
		b := f.Batch()
		q.Take(b, f.Now)
		id := cand.addInvited(f, b, state, known)
		flow.InsertOutgoing(b, id, nil, msg)
		b.Audit(by.Audit(f, store.ActionUserInvited, "user_id", id.String()))
		var u store.User
		b.User(&u, id)
		err = f.Send(ctx, b)
		if isOvertaken(err) && !again {
			continue
		}
		if err == nil {
			cand.beginPause(ctx, f, "confirmation")
		}
		return u, refusal.Failure("invite", q.RefusalOf(err))
	}
}

func newInvitation(f *flow.Flow, cand *signupCandidate, known store.User) (flow.Outgoing, error) {
	data := cand.data
	if known.ID != uuid.Nil {
		data = known.UserMetadata
	}
	return flow.NewMail(f, flow.MailSpec{
		Kind: store.KindInvite, Mail: mail.Invite, Link: mail.LinkInvite, To: cand.address,
		Vars: mail.Vars{Email: cand.address, Data: data},
	})
}

// addInvited adds the statements that create an invited user or, if the address has an unconfirmed account, record that
// its user was invited again. It returns the user's ID.
func (cand *signupCandidate) addInvited(f *flow.Flow, b *flow.Batch, state addressState, known store.User) uuid.UUID {
	if state == addressPending {
		b.UpdateUser(store.UserPatch{ID: known.ID, Now: f.Now, InvitedAt: &f.Now, ConfirmationSentAt: &f.Now})
		return known.ID
	}
	u := cand.user(f, uuid.New(), false, nil)
	u.UserMetadata, u.InvitedAt = cand.data, f.Now
	b.InsertUser(u)
	b.InsertIdentity(u.Identities[0])
	return u.ID
}

// beginPause begins the pause named name before the next mail to the address, unless it has begun already. A failure is
// ignored.
func (cand *signupCandidate) beginPause(ctx context.Context, f *flow.Flow, name string) {
	pause := f.Settings.Email.Interval
	if name == "confirmation" {
		pause = f.Settings.Email.ConfirmationInterval
	}
	q := new(flow.Quota)
	q.Pause(f, pause, name, cand.aud, cand.address)
	if err := f.Run(ctx, func(b *flow.Batch) { q.Take(b, f.Now) }); err != nil && q.RefusalOf(err) == err {
		f.Core.Log.Warn("a link of an administrator began no pause between mails", "error", err)
	}
}

package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// audit returns the row about what an administrator did.
func (by Actor) audit(f *flow, action store.Action, pairs ...string) store.Audit {
	a := f.audit(action, by.ID, by.Session, pairs...)
	if by.ID == uuid.Nil {
		a.ActorRole = by.Role
	}
	return a
}

// Invite makes a user without password and sends a link. An unconfirmed user is invited again and keeps the metadata.
// Only the budget for mails applies, no pause.
func (a *Accounts) Invite(ctx context.Context, req RequestInfo, by Actor, p Invitation) (store.User, error) {
	f := a.core.Begin(req)
	cand := &signupCandidate{aud: f.aud(), provider: "email"}
	err := checkClaimLengths("", cand.aud)
	if err != nil {
		return store.User{}, err
	}
	if cand.address, err = parseEmail(p.Email); err != nil {
		return store.User{}, err
	}
	if cand.data, err = metadata(p.Data); err != nil {
		return store.User{}, err
	}
	if f.settings.isTooLarge(cand.data, nil) {
		return store.User{}, f.settings.errTooLarge()
	}
	if err := f.settings.checkMailSendable("invite"); err != nil {
		return store.User{}, err
	}
	q := mailQuota(f, "invite", 0, cand.aud, cand.address)
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, cand, q)
		if err != nil {
			return store.User{}, err
		}
		state := cand.state(known)
		if state == addressTaken {
			return store.User{}, errEmailExists
		}
		msg, err := newInvitation(f, cand, known)
		if err != nil {
			return store.User{}, err
		}
		msg.token.Required = state == addressPending
		b := f.batch()
		q.take(b, f.now)
		id := cand.addInvited(f, b, state, known)
		insertOutgoing(b, id, nil, msg)
		b.Audit(by.audit(f, store.ActionUserInvited, "user_id", id.String()))
		var u store.User
		b.User(&u, id)
		err = f.send(ctx, b)
		if isOvertaken(err) && !again {
			continue
		}
		return u, failure("invite", q.refusalOf(err))
	}
}

func newInvitation(f *flow, cand *signupCandidate, known store.User) (outgoing, error) {
	data := cand.data
	if known.ID != uuid.Nil {
		data = known.UserMetadata
	}
	return newMail(f, mailSpec{
		kind: store.KindInvite, mail: mail.Invite, link: mail.LinkInvite, to: cand.address,
		vars: mail.Vars{Email: cand.address, Data: data},
	})
}

// addInvited adds an invited user, or marks that one was invited again.
func (cand *signupCandidate) addInvited(f *flow, b *batch, state addressState, known store.User) uuid.UUID {
	if state == addressPending {
		b.UpdateUser(store.UserPatch{ID: known.ID, Now: f.now, InvitedAt: &f.now, ConfirmationSentAt: &f.now})
		return known.ID
	}
	u := cand.user(f, uuid.New(), false, nil)
	u.UserMetadata, u.InvitedAt = cand.data, f.now
	b.InsertUser(u)
	b.InsertIdentity(u.Identities[0])
	return u.ID
}

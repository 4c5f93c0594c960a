package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// audit is a row about what an administrator did.
func (by Actor) audit(f *flow, action store.Action, pairs ...string) store.Audit {
	a := f.audit(action, by.ID, by.Session, pairs...)
	if by.ID == uuid.Nil {
		a.ActorRole = by.Role
	}
	return a
}

// Invite makes a user without password and sends him a link. Whoever is unconfirmed is invited
// again; his metadata stays. Only the budget for mails holds, no pause.
func (a *Accounts) Invite(ctx context.Context, req RequestInfo, by Actor, p Invitation) (store.User, error) {
	return invite(ctx, a.begin(req), by, p)
}

func invite(ctx context.Context, f *flow, by Actor, p Invitation) (store.User, error) {
	n := &newcomer{aud: f.aud(), provider: "email"}
	err := goodClaims("", n.aud)
	if err != nil {
		return store.User{}, err
	}
	if n.who, err = goodEmail(p.Email); err != nil {
		return store.User{}, err
	}
	if n.data, err = metadata(p.Data); err != nil {
		return store.User{}, err
	}
	if f.settings.tooLarge(n.data, nil) {
		return store.User{}, f.settings.errTooLarge()
	}
	if err := f.settings.canSendMail("invite"); err != nil {
		return store.User{}, err
	}
	q := mailQuota(f, "invite", 0, n.aud, n.who)
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, n, q)
		if err != nil {
			return store.User{}, err
		}
		st := n.standing(known)
		if st == taken {
			return store.User{}, errEmailExists
		}
		msg, err := newInvitation(f, n, known)
		if err != nil {
			return store.User{}, err
		}
		msg.token.Required = st == pending
		b := f.batch()
		q.take(b, f.now)
		id := n.invited(f, b, st, known)
		insertOutgoing(b, id, nil, msg)
		b.Audit(by.audit(f, store.ActionUserInvited, "user_id", id.String()))
		var u store.User
		b.User(&u, id)
		err = b.Send(ctx)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return store.User{}, failure("invite", q.refused(err))
		}
		return u, f.send(ctx, msg)
	}
}

func newInvitation(f *flow, n *newcomer, known store.User) (outgoing, error) {
	data := n.data
	if known.ID != uuid.Nil {
		data = known.UserMetadata
	}
	return newMail(f, mailSpec{
		kind: store.KindInvite, mail: mail.Invite, link: mail.LinkInvite, to: n.who, vars: mail.Vars{Email: n.who, Data: data},
	})
}

// invited adds an invited user, or notes that one is invited again.
func (n *newcomer) invited(f *flow, b *store.Batch, st standing, known store.User) uuid.UUID {
	if st == pending {
		b.UpdateUser(store.UserPatch{ID: known.ID, Now: f.now, InvitedAt: &f.now, ConfirmationSentAt: &f.now})
		return known.ID
	}
	u := n.user(f, uuid.New(), false, nil)
	u.UserMetadata, u.InvitedAt = n.data, f.now
	b.InsertUser(u)
	b.InsertIdentity(u.Identities[0])
	return u.ID
}

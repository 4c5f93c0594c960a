package account

import (
	"context"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// audit is a row about what an administrator did.
func (by Actor) audit(c Client, action store.Action, now time.Time, pairs ...string) store.Audit {
	a := store.Audit{At: now, Action: action, Actor: by.ID, Session: by.Session, IP: c.IP, Traits: traits(pairs...)}
	if by.ID == uuid.Nil {
		a.ActorRole = by.Role
	}
	return a
}

// Invite makes a user without password and sends him a link. Whoever is unconfirmed is invited
// again; his metadata stays. Only the budget for mails holds, no pause.
func (a *Accounts) Invite(ctx context.Context, c Client, by Actor, p Invitation) (store.User, error) {
	s := a.live.Load()
	n := &newcomer{aud: s.aud(c), provider: "email"}
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
	if s.tooLarge(n.data, nil) {
		return store.User{}, s.errTooLarge()
	}
	if err := s.canSendMail("invite"); err != nil {
		return store.User{}, err
	}
	q := a.mailQuota(s, "invite", 0, n.aud, n.who)
	for again := false; ; again = true {
		known, err := a.lookUp(ctx, n, q)
		if err != nil {
			return store.User{}, err
		}
		st := n.standing(known)
		if st == taken {
			return store.User{}, errEmailExists
		}
		now := a.now()
		l, err := a.invitation(s, c, n, known, now)
		if err != nil {
			return store.User{}, err
		}
		l.token.Required = st == pending
		b := a.db.Batch()
		q.take(b, now)
		id := n.invited(b, s, st, known, now)
		write(b, id, nil, l)
		b.Audit(by.audit(c, store.ActionUserInvited, now, "user_id", id.String()))
		var u store.User
		b.User(&u, id)
		err = b.Send(ctx)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return store.User{}, failure("invite", q.refused(err))
		}
		return u, a.send(ctx, s, l)
	}
}

func (a *Accounts) invitation(s *Settings, c Client, n *newcomer, known store.User, now time.Time) (letter, error) {
	data := n.data
	if known.ID != uuid.Nil {
		data = known.UserMetadata
	}
	return a.mail(s, c, mailed{
		kind: store.KindInvite, mail: mail.Invite, link: mail.LinkInvite, to: n.who, vars: mail.Vars{Email: n.who, Data: data},
	}, now)
}

// invited adds an invited user, or notes that one is invited again.
func (n *newcomer) invited(b *store.Batch, s *Settings, st standing, known store.User, now time.Time) uuid.UUID {
	if st == pending {
		b.UpdateUser(store.UserPatch{ID: known.ID, Now: now, InvitedAt: &now, ConfirmationSentAt: &now})
		return known.ID
	}
	u := n.user(s, uuid.New(), false, nil, now)
	u.UserMetadata, u.InvitedAt = n.data, now
	b.InsertUser(u)
	b.InsertIdentity(u.Identities[0])
	return u.ID
}

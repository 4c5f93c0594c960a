package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Recover sends a link that lets the owner of an address in. Whether anybody has the address makes
// no difference that can be seen: the pause holds for all.
func (a *Accounts) Recover(ctx context.Context, c Client, p Recover) error {
	s := a.live.Load()
	if !s.Email.Enabled {
		return invalid(CodeEmailProviderDisabled, "Email logins are disabled")
	}
	if p.Email == "" {
		return notValid("Password recovery requires an email")
	}
	who, err := goodEmail(p.Email)
	if err != nil {
		return err
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if err := s.canSendMail("recovery"); err != nil {
		return err
	}
	aud := s.aud(c)
	q := a.boundClient(s, c, a.mailQuota(s, "recovery", s.Email.Interval, aud, who))
	var u store.User
	b := a.db.Batch()
	b.UserByEmail(&u, aud, who)
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	now := a.now()
	if err := q.judge(now); err != nil {
		return err
	}
	id, found := u.ID, u.ID != uuid.Nil
	if !found {
		id = uuid.New()
	}
	flow := s.flow(p.Challenge, "recovery", now)
	l, err := a.mail(s, c, mailed{
		kind: store.KindRecovery, mail: mail.Recovery, link: mail.LinkRecovery, to: who, flow: idOf(flow),
		vars: mail.Vars{Email: who, Data: u.UserMetadata},
	}, now)
	if err != nil {
		return err
	}
	b = a.db.Batch()
	q.take(b, now)
	b.MarkSent(id, store.RecoverySent, now)
	write(b, id, flow, l)
	b.Audit(store.Audit{At: now, Action: store.ActionUserRecoveryRequested, Actor: id, OnlyFor: id, IP: c.IP})
	if err := b.Send(ctx); err != nil {
		return failure("recover", q.refused(err))
	}
	return a.send(ctx, s, l)
}

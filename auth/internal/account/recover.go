package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Recover sends a link that signs the owner of an address in. Whether the address has an account makes no visible
// difference: the pause applies to all.
func (a *Accounts) Recover(ctx context.Context, req RequestInfo, p Recover) error {
	f := a.core.Begin(req)
	if !f.settings.Email.Enabled {
		return invalid(CodeEmailProviderDisabled, "Email logins are disabled")
	}
	if p.Email == "" {
		return notValid("Password recovery requires an email")
	}
	who, err := parseEmail(p.Email)
	if err != nil {
		return err
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if err := f.settings.checkMailSendable("recovery"); err != nil {
		return err
	}
	aud := f.aud()
	q := boundClient(f, mailQuota(f, "recovery", f.settings.Email.Interval, aud, who)).apart(f, aud, who)
	var u store.User
	b := f.batch()
	b.UserByEmail(&u, aud, who)
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	f.tick()
	if err := q.check(f.now); err != nil {
		return err
	}
	id, found := u.ID, u.ID != uuid.Nil
	if !found {
		id = uuid.New()
	}
	pkce := f.settings.pkceFlow(p.Challenge, "recovery", f.now)
	msg, err := newMail(f, mailSpec{
		kind: store.KindRecovery, mail: mail.Recovery, link: mail.LinkRecovery, to: who, flow: idOf(pkce),
		vars: mail.Vars{Email: who, Data: u.UserMetadata},
	})
	if err != nil {
		return err
	}
	q.mark(&msg.token)
	b = f.batch()
	q.take(b, f.now)
	b.MarkSent(id, store.RecoverySent, f.now)
	insertOutgoing(b, id, pkce, msg)
	note := f.audit(store.ActionUserRecoveryRequested, id, uuid.Nil)
	note.OnlyFor = id
	b.Audit(note)
	return failure("recover", q.refusalOf(f.send(ctx, b)))
}

package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Recover mails a link that signs the owner of an address in, to set a new password. The answer does not reveal whether
// the address has an account: the pause between two mails to one address applies to unknown addresses too.
func (a *Accounts) Recover(ctx context.Context, req flow.RequestInfo, p flow.Recover) error {
	f := a.core.Begin(req)
	if err := f.Settings.Email.CheckRecovery(); err != nil {
		return err
	}
	if p.Email == "" {
		return refusal.NotValid("Password recovery requires an email")
	}
	who, err := flow.ParseEmail(p.Email)
	if err != nil {
		return err
	}
	if err := p.Challenge.Check(); err != nil {
		return err
	}
	if err := f.Settings.CheckMailSendable("recovery"); err != nil {
		return err
	}
	aud := f.Aud()
	q := flow.BoundClient(f, flow.MailQuota(f, "recovery", f.Settings.Email.Interval, aud, who)).Apart(f, aud, who)
	var u store.User
	if err := q.LookUp(ctx, f, func(b *flow.Batch) { b.UserByEmail(&u, aud, who) }); err != nil {
		return err
	}
	id, found := u.ID, u.ID != uuid.Nil
	if !found {
		id = uuid.New()
	}
	pkce := f.Settings.PkceFlow(p.Challenge, "recovery", f.Now)
	msg, err := flow.NewMail(f, flow.MailSpec{
		Kind: store.KindRecovery, Mail: mail.Recovery, Link: mail.LinkRecovery, To: who, Flow: flow.IDOf(pkce),
		Vars: mail.Vars{Email: who, Data: u.UserMetadata},
	})
	if err != nil {
		return err
	}
	q.Mark(&msg.Token)
	b := f.Batch()
	q.Take(b, f.Now)
	b.MarkSent(id, store.RecoverySent, f.Now)
	flow.InsertOutgoing(b, id, pkce, msg)
	note := f.Audit(store.ActionUserRecoveryRequested, id, uuid.Nil)
	note.OnlyFor = id
	b.Audit(note)
	return refusal.Failure("recover", q.RefusalOf(f.Send(ctx, b)))
}

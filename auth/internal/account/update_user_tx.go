package account

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// updateUserTx gathers the changes of an update of a user into one batch.
type updateUserTx struct {
	f     *flow.Flow
	op    *updateUserOp
	b     *flow.Batch
	old   store.User // the user as locked
	patch store.UserPatch

	identities    []store.Identity // identities to write
	void          []store.Kind     // kinds of tokens to delete; every kind if voidAll is set
	voidAll       bool
	outgoing      []flow.Outgoing
	pkce          *store.Flow
	notifications []store.NewMessage
	// pending is the hash of a password that is stored with the token of the user's first address.
	pending string
}

// passwordWaits reports whether the new password waits for a proof of an address: a password that is given together
// with the account's first address is set only when the address is proven, as in a sign-up.
func (ch *updateUserTx) passwordWaits() bool {
	atOnce := ch.op.email != "" && ch.op.mails == nil || ch.op.phone != "" && ch.op.texts == nil
	return ch.old.Email == "" && ch.old.Phone == "" && (ch.op.mails != nil || ch.op.texts != nil) && !atOnce
}

// password sets the new password, and ends whatever other persons may have requested before: tokens, pending changes of
// address and other sessions.
func (ch *updateUserTx) password() {
	p := &ch.patch
	p.PasswordHash = &ch.op.hash
	ch.voidAll = true
	flow.ClearSent(p)
	flow.DropChanges(p)
	// The pause of an address that is only pending stays, since the address may be another person's.
	var pauses [][]byte
	if who := ch.old.Email; who != "" {
		for _, name := range []string{"confirmation", "recovery", "email_change", "reauthentication"} {
			pause := store.Limit{Key: ch.f.LimitKey(name, ch.old.Aud, who)}
			pauses = append(pauses, pause.Key, flow.PauseAt(ch.f, pause).Key)
		}
	}
	if ch.old.Phone != "" {
		pauses = append(pauses, ch.f.LimitKey("phone", ch.old.Aud, ch.old.Phone))
	}
	if len(pauses) > 0 && ch.op.mails == nil && ch.op.texts == nil {
		ch.b.Then(func(ctx context.Context) { ch.op.endPauses(ctx, pauses) })
	}
	// Now that the user has a password, the address is a way to sign in: it gets an identity.
	if !ch.old.EmailConfirmedAt.IsZero() && !hasIdentity(ch.old, "email") && ch.old.Email != "" {
		ch.identities = append(ch.identities, *flow.OwnIdentity(ch.old.ID, "email", ch.old.Email, nil, *p))
		p.ProvidersFromIdentities = true
	}
	ch.notify(ch.f.Settings.Email.Notify.PasswordChanged, mail.PasswordChanged, mail.Vars{})
}

func hasIdentity(u store.User, provider string) bool {
	return slices.ContainsFunc(u.Identities, func(i store.Identity) bool { return i.Provider == provider })
}

// email makes the new address pending until it is proven, or sets an anonymous user's address at once.
func (ch *updateUserTx) email() error {
	p := &ch.patch
	if ch.op.emailAtOnce() {
		p.Email, p.EmailConfirmedAt, p.EmailUnproven, p.IsAnonymous = &ch.op.email, &ch.f.Now, new(true), new(false)
		ch.proven("email", ch.op.email)
		return nil
	}
	wanted := ch.old
	wanted.NewEmail = ch.op.email
	ch.pkce = ch.f.Settings.PkceFlow(ch.op.p.Challenge, "email_change", ch.f.Now)
	msgs, err := flow.NewEmailChange(ch.f, wanted, ch.pkce)
	for i := range msgs { // a user without an address gets only one message
		msgs[i].Token.PasswordHash = ch.pending
		ch.op.mails.Mark(&msgs[i].Token)
	}
	ch.outgoing = append(ch.outgoing, msgs...)
	ch.void = append(ch.void, store.KindEmailChangeCurrent, store.KindEmailChangeNew)
	p.NewEmail, p.EmailChangeSentAt, p.CurrentEmailProven, p.NewEmailProven = &ch.op.email, &ch.f.Now, new(false),
		new(false)
	return err
}

func (ch *updateUserTx) phone() error {
	p := &ch.patch
	if ch.f.Settings.Phone.Autoconfirm {
		p.Phone, p.PhoneConfirmedAt, p.PhoneUnproven, p.IsAnonymous = &ch.op.phone, &ch.f.Now, new(true), new(false)
		ch.proven("phone", ch.op.phone)
		ch.notify(ch.f.Settings.Email.Notify.PhoneChanged && ch.old.Phone != "", mail.PhoneChanged,
			mail.Vars{Phone: ch.op.phone, OldPhone: ch.old.Phone})
		return nil
	}
	msg, err := flow.NewSMS(ch.f, store.KindPhoneChange,
		flow.Phone{Number: ch.op.phone, Channel: ch.op.p.Channel, Metadata: ch.old.UserMetadata})
	msg.Token.PasswordHash = ch.pending
	ch.outgoing = append(ch.outgoing, msg)
	p.NewPhone, p.PhoneChangeSentAt = &ch.op.phone, &ch.f.Now
	return err
}

// proven makes an address a way to sign in; who is the e-mail address or phone number. Pending changes of address end,
// except a change that this request asks for.
func (ch *updateUserTx) proven(provider, who string) {
	if p := &ch.patch; p.NewEmail == nil {
		p.NewEmail, p.CurrentEmailProven, p.NewEmailProven = new(""), new(false), new(false)
	}
	if ch.patch.NewPhone == nil {
		ch.patch.NewPhone = new("")
	}
	ch.identities = append(ch.identities, *flow.OwnIdentity(ch.old.ID, provider, who, nil, ch.patch))
	ch.patch.ProvidersFromIdentities = true
	ch.patch.UserMetadata.Set = flow.Merge(ch.patch.UserMetadata.Set,
		flow.MustJSON(map[string]any{provider: who, provider + "_verified": true}))
	ch.voidAll = true
}

// fill adds all changes to the batch, in the order in which all flows lock rows.
func (ch *updateUserTx) fill() {
	b, id := ch.b, ch.old.ID
	for _, i := range ch.identities {
		b.PutIdentity(i)
	}
	b.UpdateUser(ch.patch)
	if ch.patch.PasswordHash != nil && ch.f.Settings.Passwords.ChangeEndsSessions {
		b.EndSessions(store.EndSessions{User: id, Except: ch.op.principal.Session.ID,
			Reason: store.EndedPasswordChanged,
			At:     ch.f.Now})
	}
	if ch.voidAll {
		b.DeleteTokens(id)
		b.DeleteFlows(id) // the PKCE codes that were issued are void too
	} else if len(ch.void) > 0 {
		b.DeleteTokens(id, ch.void...)
	}
	if ch.patch.PasswordHash != nil {
		b.DeleteChallenges(id)
	}
	flow.InsertOutgoing(b, id, ch.pkce, ch.outgoing...)
	b.Notify(id, ch.notifications...)
	for _, done := range []struct {
		it     bool
		action store.Action
	}{
		{ch.patch.PasswordHash != nil, store.ActionUserUpdatedPassword},
		{ch.op.mails != nil, store.ActionEmailChangeRequested},
		{ch.op.texts != nil, store.ActionPhoneChangeRequested},
		{true, store.ActionUserModified},
	} {
		if done.it {
			b.Audit(ch.f.Audit(done.action, id, ch.op.principal.Session.ID))
		}
	}
}

// amr returns the authentication methods of a session, newest first.
func amr(v store.Session) (list []token.AMR) {
	if v.ID == uuid.Nil || json.Unmarshal(v.AMR, &list) != nil {
		return nil
	}
	return list
}

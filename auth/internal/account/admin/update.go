package admin

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// adminUpdateOp is the state of one call of AdminUpdate.
type adminUpdateOp struct {
	f            flow.Flow
	by           flow.Actor
	p            flow.Attributes
	email, phone string
	hash         string
	until        time.Time
	bans         bool // the request has a ban_duration
	user, app    store.MetadataPatch
}

// AdminUpdate changes a user on behalf of an administrator. Addresses change at once, and no message is sent. A new
// password ends all sessions of the user. So does, unless AUTH_SECURITY_EMAIL_CHANGE_ENDS_SESSIONS is off, an address
// that replaces another, since sessions opened by the old address must not stay. A ban does not end sessions.
func (a *Users) AdminUpdate(ctx context.Context, req flow.RequestInfo, by flow.Actor, id uuid.UUID,
	p flow.Attributes) (store.User, error) {
	f := a.core.Begin(req)
	op := adminUpdateOp{f: *f, by: by, p: p}
	p.PasswordHash = nil
	if err := op.validate(); err != nil {
		return store.User{}, err
	}
	if text := valueOf(p.Password); text != "" {
		var err error
		if op.hash, err = f.Core.Passwords.Hash(ctx, text); err != nil {
			return store.User{}, refusal.Failure("hash password", err)
		}
	}
	var out store.User
	err := flow.OnUser(ctx, f, id, func(tx *flow.Tx, old store.User) error {
		if !old.DeletedAt.IsZero() {
			return flow.ErrNoUser
		}
		if err := f.Settings.CheckGrowth(old, op.user, op.app); err != nil {
			return err
		}
		waits, err := op.look(ctx, tx, old)
		if err != nil {
			return err
		}
		b := tx.Batch()
		op.fill(b, old, waits)
		b.User(&out, id)
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrEmailTaken):
		return store.User{}, flow.ErrEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return store.User{}, errNumberTaken
	}
	return out, refusal.Failure("update user", err)
}

func (op *adminUpdateOp) validate() (err error) {
	if err := flow.CheckClaimLengths(valueOf(op.p.Role), ""); err != nil {
		return err
	}
	if text := valueOf(op.p.Email); text != "" {
		if op.email, err = flow.ParseEmail(text); err != nil {
			return err
		}
	}
	if text := valueOf(op.p.Phone); text != "" {
		if op.phone, err = flow.ParsePhone(text); err != nil {
			return err
		}
	}
	if op.until, op.bans, err = parseBan(op.p.BanDuration, op.f.Now); err != nil {
		return err
	}
	if op.p.Password != nil && (*op.p.Password != "" || op.f.Settings.Passwords.PolicyForAdmin) {
		if err := checkAdminPassword(op.f.Settings, flow.Attributes{Password: op.p.Password}); err != nil {
			return err
		}
		if *op.p.Password == "" {
			return op.f.Settings.CheckPassword("")
		}
	}
	if op.user, err = flow.ParsePatch(flow.UserMetadata(op.p.UserMetadata)); err != nil {
		return err
	}
	op.app, err = flow.ParsePatch(flow.Metadata(op.p.AppMetadata))
	return err
}

// look reads which accounts have the new addresses. It also reads the pending sign-up whose password and metadata the
// user gets if the administrator confirms an address.
func (op *adminUpdateOp) look(ctx context.Context, tx *flow.Tx, old store.User) (pending store.Token, err error) {
	var other store.User
	b := tx.Batch()
	if op.email != "" && op.email != old.Email {
		b.Account(&other, old.Aud, op.email)
	}
	if isTrue(op.p.EmailConfirm) || isTrue(op.p.PhoneConfirm) {
		b.PendingSignUp(&pending, old.ID)
	}
	if err := b.Send(ctx); err != nil {
		return pending, err
	}
	if other.ID != uuid.Nil && other.ID != old.ID {
		return pending, store.ErrEmailTaken
	}
	return pending, nil
}

func (op *adminUpdateOp) fill(b *flow.Batch, old store.User, pending store.Token) {
	p := store.UserPatch{ID: old.ID, Now: op.f.Now, UserMetadata: op.user, AppMetadata: op.app}
	if role := flow.StorableText(valueOf(op.p.Role)); role != "" {
		p.Role = &role
	}
	if op.bans {
		p.BannedUntil = &op.until
	}
	voids, ends := op.hash != "", ""
	if op.hash != "" {
		p.PasswordHash, ends = &op.hash, store.EndedPasswordChanged
	}
	for _, way := range []struct {
		provider, old, wanted string
		confirm               bool
		set                   **string
		at                    **time.Time
		unproven              **bool
		since                 time.Time
		ended                 string
	}{
		{"email", old.Email, op.email, isTrue(op.p.EmailConfirm), &p.Email, &p.EmailConfirmedAt, &p.EmailUnproven,
			old.EmailConfirmedAt, store.EndedEmailChanged},
		{"phone", old.Phone, op.phone, isTrue(op.p.PhoneConfirm), &p.Phone, &p.PhoneConfirmedAt, &p.PhoneUnproven,
			old.PhoneConfirmedAt, store.EndedPhoneChanged},
	} {
		who := way.old
		if way.wanted != "" && way.wanted != way.old {
			who, voids = way.wanted, true
			*way.set = &who
			if way.old != "" && op.f.Settings.Email.ChangeEndsSessions && ends == "" {
				ends = way.ended
			}
		}
		if who == "" || *way.set == nil && !way.confirm {
			continue
		}
		facts := map[string]any{way.provider + "_verified": way.confirm || !way.since.IsZero()}
		if *way.set != nil {
			facts[way.provider] = who
		}
		p.UserMetadata.Set = flow.Merge(flow.MustJSON(facts), p.UserMetadata.Set)
		i := flow.OwnIdentity(old.ID, way.provider, who, nil, p)
		i.LastSignInAt = time.Time{}
		if !way.confirm { // the flags email_verified and phone_verified keep their values
			facts["sub"] = old.ID.String()
			i.Data = flow.MustJSON(facts)
		}
		b.PutIdentity(*i)
		p.ProvidersFromIdentities = true
		if !way.confirm {
			continue
		}
		voids = voids || way.since.IsZero()
		*way.unproven = new(false)
		if *way.set != nil || way.since.IsZero() {
			*way.at = &op.f.Now
		}
		if old.IsAnonymous {
			p.IsAnonymous = new(false)
		}
		if way.since.IsZero() && pending.Address == who && !pending.Contested {
			op.adoptSignup(&p, old, pending)
		}
	}
	if voids { // tokens that were sent prove an address or a right that no longer exists
		flow.DropChanges(&p)
	}
	b.UpdateUser(p)
	if ends != "" {
		b.EndSessions(store.EndSessions{User: old.ID, Reason: ends, At: op.f.Now})
	}
	if voids {
		b.DeleteTokens(old.ID)
		b.DeleteFlows(old.ID) // the PKCE codes that were issued are void too
		b.DeleteChallenges(old.ID)
	}
	op.audit(b, old)
}

// adoptSignup sets the password and metadata of the user's pending sign-up, unless the user has some already.
func (op *adminUpdateOp) adoptSignup(p *store.UserPatch, old store.User, pending store.Token) {
	if op.hash == "" && old.PasswordHash == "" && pending.PasswordHash != "" {
		p.PasswordHash = &pending.PasswordHash
	}
	p.UserMetadata.Set = flow.Merge(pending.UserMetadata, p.UserMetadata.Set)
}

func (op *adminUpdateOp) audit(b *flow.Batch, old store.User) {
	id := old.ID.String()
	b.Audit(op.by.Audit(&op.f, store.ActionUserModified, "user_id", id))
	if op.hash != "" {
		b.Audit(op.by.Audit(&op.f, store.ActionUserUpdatedPassword, "user_id", id))
	}
	if role := flow.StorableText(valueOf(op.p.Role)); role != "" && role != old.Role {
		b.Audit(op.by.Audit(&op.f, store.ActionUserRoleChanged, "user_id", id, "role", role))
	}
	was := old.BannedUntil.After(op.f.Now)
	switch {
	case op.bans && !op.until.IsZero():
		b.Audit(op.by.Audit(&op.f, store.ActionUserBanned, "user_id", id))
	case op.bans && was:
		b.Audit(op.by.Audit(&op.f, store.ActionUserUnbanned, "user_id", id))
	}
}

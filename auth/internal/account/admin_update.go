package account

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// edit is one call of AdminUpdate.
type edit struct {
	f            *flow
	by           Actor
	p            Attributes
	email, phone string
	hash         string
	until        time.Time
	bans         bool // ban_duration was given
	user, app    store.MetadataPatch
}

// AdminUpdate changes a user without asking him: addresses at once, and nobody is written to. Another
// password ends all his sessions, and so does another address in the place of one that he had: whoever
// came in by that one stays no longer. A ban keeps them.
func (a *Accounts) AdminUpdate(ctx context.Context, req RequestInfo, by Actor, id uuid.UUID, p Attributes) (store.User, error) {
	return adminUpdate(ctx, a.begin(req), by, id, p)
}

func adminUpdate(ctx context.Context, f *flow, by Actor, id uuid.UUID, p Attributes) (store.User, error) {
	e := edit{f: f, by: by, p: p}
	p.PasswordHash = nil
	if err := e.judge(); err != nil {
		return store.User{}, err
	}
	if text := set(p.Password); text != "" {
		var err error
		if e.hash, err = f.core.passwords.Hash(ctx, text); err != nil {
			return store.User{}, failure("hash password", err)
		}
	}
	var out store.User
	err := f.inTx(ctx, func(tx *store.Tx) error {
		old, err := tx.LockUser(ctx, id)
		if err != nil {
			return err
		}
		if !old.DeletedAt.IsZero() {
			return store.ErrNotFound
		}
		if err := f.settings.checkGrowth(old, e.user, e.app); err != nil {
			return err
		}
		waits, err := e.look(ctx, tx, old)
		if err != nil {
			return err
		}
		b := tx.Batch()
		e.fill(b, old, waits)
		b.User(&out, id)
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.User{}, errNoUser
	case errors.Is(err, store.ErrEmailTaken):
		return store.User{}, errEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return store.User{}, errNumberTaken
	}
	return out, failure("update user", err)
}

func (e *edit) judge() (err error) {
	if err := goodClaims(set(e.p.Role), ""); err != nil {
		return err
	}
	if text := set(e.p.Email); text != "" {
		if e.email, err = goodEmail(text); err != nil {
			return err
		}
	}
	if text := set(e.p.Phone); text != "" {
		if e.phone, err = goodPhone(text); err != nil {
			return err
		}
	}
	if e.until, e.bans, err = banned(e.p.BanDuration, e.f.now); err != nil {
		return err
	}
	if e.p.Password != nil && (*e.p.Password != "" || e.f.settings.Passwords.PolicyForAdmin) {
		if err := e.f.settings.adminPassword(Attributes{Password: e.p.Password}); err != nil {
			return err
		}
		if *e.p.Password == "" {
			return e.f.settings.goodPassword("")
		}
	}
	if e.user, err = parsePatch(userMetadata(e.p.UserMetadata)); err != nil {
		return err
	}
	e.app, err = parsePatch(metadata(e.p.AppMetadata))
	return err
}

// look reads what the change depends on: who else has the address, and the sign-up that a confirmation
// would take the password and data of.
func (e *edit) look(ctx context.Context, tx *store.Tx, old store.User) (pending store.Token, err error) {
	var other store.User
	b := tx.Batch()
	if e.email != "" && e.email != old.Email {
		b.Account(&other, old.Aud, e.email)
	}
	if yes(e.p.EmailConfirm) || yes(e.p.PhoneConfirm) {
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

func (e *edit) fill(b *store.Batch, old store.User, pending store.Token) {
	p := store.UserPatch{ID: old.ID, Now: e.f.now, UserMetadata: e.user, AppMetadata: e.app}
	if role := plain(set(e.p.Role)); role != "" {
		p.Role = &role
	}
	if e.bans {
		p.BannedUntil = &e.until
	}
	voids, ends := e.hash != "", ""
	if e.hash != "" {
		p.PasswordHash, ends = &e.hash, store.EndedPasswordChanged
	}
	for _, way := range []struct {
		provider, old, wanted string
		confirm               bool
		set                   **string
		at                    **time.Time
		since                 time.Time
		ended                 string
	}{
		{"email", old.Email, e.email, yes(e.p.EmailConfirm), &p.Email, &p.EmailConfirmedAt, old.EmailConfirmedAt, store.EndedEmailChanged},
		{"phone", old.Phone, e.phone, yes(e.p.PhoneConfirm), &p.Phone, &p.PhoneConfirmedAt, old.PhoneConfirmedAt, store.EndedPhoneChanged},
	} {
		who := way.old
		if way.wanted != "" && way.wanted != way.old {
			who, voids = way.wanted, true
			*way.set = &who
			if way.old != "" && e.f.settings.Email.ChangeEndsSessions && ends == "" {
				ends = way.ended
			}
		}
		if who == "" || *way.set == nil && !way.confirm {
			continue
		}
		i := ownIdentity(old.ID, way.provider, who, nil, p)
		i.Data, i.LastSignInAt = profile(old.ID, way.provider, who, way.confirm, nil), time.Time{}
		if !way.confirm { // the flags of the other address stay, and this one's is as it was
			was := !way.since.IsZero()
			i.Data = object(map[string]any{"sub": old.ID.String(), way.provider: who, way.provider + "_verified": was})
			p.UserMetadata.Set = merge(object(map[string]any{way.provider: who, way.provider + "_verified": was}), p.UserMetadata.Set)
		}
		b.PutIdentity(*i)
		p.ProvidersFromIdentities = true
		if !way.confirm {
			continue
		}
		voids = voids || way.since.IsZero()
		if *way.set != nil || way.since.IsZero() {
			*way.at = &e.f.now
		}
		if old.IsAnonymous {
			p.IsAnonymous = ptr(false)
		}
		p.UserMetadata.Set = merge(object(map[string]bool{way.provider + "_verified": true}), p.UserMetadata.Set)
		if way.since.IsZero() && pending.Address == who {
			e.adopt(&p, old, pending)
		}
	}
	if voids { // whatever was sent proves an address or a right that is no more
		p.NewEmail, p.NewPhone, p.CurrentEmailProven, p.NewEmailProven = ptr(""), ptr(""), ptr(false), ptr(false)
	}
	b.UpdateUser(p)
	if ends != "" {
		b.EndSessions(store.EndSessions{User: old.ID, Reason: ends, At: e.f.now})
	}
	if voids {
		b.DeleteTokens(old.ID)
		b.DeleteFlows(old.ID) // and the codes that were given out
		b.DeleteChallenges(old.ID)
	}
	e.note(b, old)
}

// adopt gives the user what the newest sign-up of him brought along, where nobody has set anything.
func (e *edit) adopt(p *store.UserPatch, old store.User, pending store.Token) {
	if e.hash == "" && old.PasswordHash == "" && pending.PasswordHash != "" {
		p.PasswordHash = &pending.PasswordHash
	}
	p.UserMetadata.Set = merge(pending.UserMetadata, p.UserMetadata.Set)
}

func (e *edit) note(b *store.Batch, old store.User) {
	id := old.ID.String()
	b.Audit(e.by.audit(e.f, store.ActionUserModified, "user_id", id))
	if e.hash != "" {
		b.Audit(e.by.audit(e.f, store.ActionUserUpdatedPassword, "user_id", id))
	}
	if role := plain(set(e.p.Role)); role != "" && role != old.Role {
		b.Audit(e.by.audit(e.f, store.ActionUserRoleChanged, "user_id", id, "role", role))
	}
	was := old.BannedUntil.After(e.f.now)
	switch {
	case e.bans && !e.until.IsZero():
		b.Audit(e.by.audit(e.f, store.ActionUserBanned, "user_id", id))
	case e.bans && was:
		b.Audit(e.by.audit(e.f, store.ActionUserUnbanned, "user_id", id))
	}
}

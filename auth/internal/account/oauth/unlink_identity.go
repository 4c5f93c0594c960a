package oauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// UnlinkIdentity removes one of the user's own identities. text is the identity's ID; aud is the request's header
// X-JWT-AUD. The user's sessions stay.
func (a *Identities) UnlinkIdentity(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	text, aud string) error {
	f := a.core.Begin(req)
	if err := checkLinking(f.Settings, principal.User, principal.Session); err != nil {
		return err
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return refusal.Missing(refusal.CodeValidationFailed, "identity_id must be an UUID")
	}
	if f.Settings.IsOtherAudience(aud, &principal.Claims) {
		return refusal.Denied(refusal.CodeUnexpectedAudience, "Token audience doesn't match request audience")
	}
	op := unlinkIdentityOp{f: *f, principal: principal, id: id}
	op.notify = flow.CanNotify(ctx, f, f.Settings.Email.Notify.IdentityUnlinked)
	err = flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, old store.User, session store.Session) error {
		return op.write(ctx, tx, old, session)
	})
	if errors.Is(err, store.ErrEmailTaken) { // another user has taken the address in the meantime
		return errUnlinkConflict
	}
	return refusal.Failure("unlink", err)
}

var errUnlinkConflict = refusal.Unprocessable(refusal.CodeEmailConflictIdentity,
	"Unable to unlink identity due to email conflict")

// unlinkIdentityOp is the state of one call of UnlinkIdentity.
type unlinkIdentityOp struct {
	f         flow.Flow
	principal flow.Principal
	id        uuid.UUID
	notify    bool // the budget allows a notification
}

// write runs within the transaction. old and session are the user as locked and the user's session.
func (op *unlinkIdentityOp) write(ctx context.Context, tx *flow.Tx, old store.User, session store.Session) error {
	if err := checkLinkingLevel(op.f.Settings, old, session); err != nil {
		return err
	}
	if err := tx.Run(ctx, func(b *flow.Batch) { b.Identities(&old.Identities, old.ID) }); err != nil {
		return err
	}
	if len(old.Identities) < 2 {
		return refusal.Unprocessable(refusal.CodeSingleIdentity, "User must have at least 1 identity after unlinking")
	}
	at := slices.IndexFunc(old.Identities, func(i store.Identity) bool { return i.ID == op.id })
	if at < 0 {
		return refusal.Unprocessable(refusal.CodeIdentityNotFound, "Identity doesn't exist")
	}
	gone := old.Identities[at]
	rest := slices.Delete(slices.Clone(old.Identities), at, at+1)
	p := store.UserPatch{ID: old.ID, Now: op.f.Now, ProvidersFromIdentities: true}
	var moved bool
	var err error
	if gone.Provider == "phone" {
		p.Phone, p.PhoneConfirmedAt, p.NewPhone = new(""), &time.Time{}, new("")
		p.UserMetadata.Delete, p.UserMetadata.Set = []string{"phone"}, flow.MustJSON(map[string]any{"phone_verified": false})
	} else if moved, err = op.moveEmail(ctx, tx, &p, old, rest); err != nil {
		return err
	}
	if gone.Provider == "email" &&
		!slices.ContainsFunc(rest, func(i store.Identity) bool {
			return old.Email != "" && IdentityEmail(&i) == old.Email
		}) {
		p.PasswordHash = new("") // the password belonged to the removed address
	}
	b := tx.Batch()
	b.DeleteIdentity(gone.ID)
	b.UpdateUser(p)
	if moved {
		b.DeleteTokens(old.ID)
		b.DeleteFlows(old.ID)
	} else if gone.Provider == "phone" {
		b.DeleteTokens(old.ID, store.KindSMS, store.KindPhoneChange)
	}
	if op.notify {
		flow.NotifyUser(&op.f, b, mail.IdentityUnlinked, old, mail.Vars{Provider: gone.Provider})
	}
	b.Audit(op.f.Audit(store.ActionIdentityUnlinked, old.ID, op.principal.Session.ID,
		"identity_id", gone.ID.String(), "provider", gone.Provider, "provider_id", gone.ProviderID))
	return b.Send(ctx)
}

// moveEmail changes the user's e-mail address to a verified address of a remaining identity, if no remaining identity
// has the user's own address. It never sets an unverified address, whose owner could then enter an account that another
// person uses. If there is no verified address, the user has none.
func (op *unlinkIdentityOp) moveEmail(ctx context.Context, tx *flow.Tx, p *store.UserPatch, old store.User,
	rest []store.Identity) (moved bool, err error) {
	var wanted []string
	for _, i := range rest {
		if e := IdentityEmail(&i); e == old.Email && e != "" {
			return false, nil
		} else if e != "" && verifiedBy(i) {
			wanted = append(wanted, e)
		}
	}
	if old.Email == "" {
		return false, nil
	}
	var taken []string
	if err := tx.Run(ctx, func(b *flow.Batch) { b.TakenByOthers(&taken, old.Aud, wanted, old.ID) }); err != nil {
		return false, err
	}
	to, ok := nextEmail(rest, taken)
	if !ok {
		return false, errUnlinkConflict
	}
	email := ""
	if verifiedBy(to) {
		email = IdentityEmail(&to)
	}
	p.Email = &email
	flow.DropChanges(p)
	flow.ClearSent(p)
	members := map[string]any{"email_verified": email != ""}
	if email != "" {
		members["email"], p.EmailConfirmedAt = email, &op.f.Now
	} else {
		p.UserMetadata.Delete, p.EmailConfirmedAt = []string{"email"}, &time.Time{}
	}
	p.UserMetadata.Set = flow.MustJSON(members)
	return true, nil
}

// nextEmail returns the identity whose address the user gets: the oldest one with a verified address, else the oldest
// one. It ignores identities whose verified address another user has.
func nextEmail(rest []store.Identity, taken []string) (store.Identity, bool) {
	free := slices.DeleteFunc(slices.Clone(rest), func(i store.Identity) bool {
		return verifiedBy(i) && slices.Contains(taken, IdentityEmail(&i))
	})
	if len(free) == 0 {
		return store.Identity{}, false
	}
	rank := func(i store.Identity) int {
		if IdentityEmail(&i) != "" && verifiedBy(i) {
			return 0
		}
		return 1
	}
	return slices.MinFunc(free, func(x, y store.Identity) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.CreatedAt.Compare(y.CreatedAt), slices.Compare(x.ID[:], y.ID[:]))
	}), true
}

// IdentityEmail returns the address of an identity, verified or not, from its data: the column email has only verified
// addresses.
func IdentityEmail(i *store.Identity) string {
	if i.Email != "" || i.Provider == "email" || i.Provider == "phone" {
		return i.Email
	}
	var data struct {
		Email string `json:"email"`
	}
	// Valid, since it comes from PostgreSQL; an address that is not a string counts as none.
	_ = json.Unmarshal(i.Data, &data)
	return data.Email
}

// verifiedBy reports whether the identity's provider has verified its address. Without the flag email_verified, it
// counts as not verified.
func verifiedBy(i store.Identity) bool {
	var data struct {
		Verified bool `json:"email_verified"`
	}
	return json.Unmarshal(i.Data, &data) == nil && data.Verified
}

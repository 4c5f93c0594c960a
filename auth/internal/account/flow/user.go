package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// ErrNoUser is the refusal of a request about a user who does not exist.
var ErrNoUser = refusal.Missing(refusal.CodeUserNotFound, "User not found")

// UserOf returns the user with this ID, of any audience and even if soft-deleted. It returns ErrNoUser if there is
// none.
func (k *Core) UserOf(ctx context.Context, id uuid.UUID) (store.User, error) {
	u, err := k.DB.User(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return u, ErrNoUser
	}
	return u, refusal.Failure("user", err)
}

// OnUser locks the user with this ID and runs do in the same transaction. It returns ErrNoUser if the user does not
// exist.
func OnUser(ctx context.Context, f *Flow, id uuid.UUID, do func(*Tx, store.User) error) error {
	err := f.Commit(ctx, func(tx *Tx) error {
		u, err := tx.LockUser(ctx, id)
		if err != nil {
			return err
		}
		return do(tx, u)
	})
	if errors.Is(err, store.ErrNotFound) {
		return ErrNoUser
	}
	return err
}

// DropOthers adds to a patch what an account loses when the proven owner of an address gets the account: the password,
// unless the owner chose one; the phone number if provider is "email", or the e-mail address if provider is "phone";
// and pending changes.
func DropOthers(p *store.UserPatch, provider string) {
	if p.PasswordHash == nil {
		p.PasswordHash = new("")
	}
	if provider == "email" {
		p.Phone, p.PhoneConfirmedAt, p.UserMetadata.Delete = new(""), &time.Time{}, []string{"phone"}
	} else {
		p.Email, p.EmailConfirmedAt, p.UserMetadata.Delete = new(""), &time.Time{}, []string{"email"}
	}
	DropChanges(p)
	p.ProvidersFromIdentities = true
}

// ClearSent adds to a patch that no messages have been sent to the user yet: it clears the times of sending.
func ClearSent(p *store.UserPatch) {
	p.ConfirmationSentAt, p.RecoverySentAt, p.ReauthenticationSentAt = &time.Time{}, &time.Time{}, &time.Time{}
	p.EmailChangeSentAt, p.PhoneChangeSentAt = &time.Time{}, &time.Time{}
}

// DropChanges adds to a patch the end of every pending change of address. Otherwise the mail of a change could be sent
// again, to an address that another person may have entered.
func DropChanges(p *store.UserPatch) {
	p.NewEmail, p.NewPhone, p.CurrentEmailProven, p.NewEmailProven = new(""), new(""), new(false), new(false)
}

// maxClaim is the maximum length in bytes of a role and of an audience: both are in every access token, which is sent
// in headers.
const maxClaim = 255

// CheckClaimLengths refuses a role or audience that is longer than maxClaim.
func CheckClaimLengths(role, aud string) error {
	switch {
	case len(role) > maxClaim:
		return refusal.NotValid(fmt.Sprintf("Role cannot be longer than %d bytes", maxClaim))
	case len(aud) > maxClaim:
		return refusal.NotValid(fmt.Sprintf("Audience cannot be longer than %d bytes", maxClaim))
	}
	return nil
}

// ErrSignupDisabled is the refusal of a sign-up while only administrators and invitations may create users.
var ErrSignupDisabled = refusal.Unprocessable(refusal.CodeSignupDisabled, "Signups not allowed for this instance")

// Profile returns data together with the members that this daemon writes itself (ownMembers), which replace members of
// the same name. The result is stored as the identity_data of an identity and, if the address is verified, also as the
// user's user_metadata.
func Profile(id uuid.UUID, provider, who string, verified bool, data json.RawMessage) json.RawMessage {
	members := membersOf(data)
	ours := map[string]any{"sub": id.String(), provider: who, "email_verified": false, "phone_verified": false}
	ours[provider+"_verified"] = verified
	for name, value := range ours {
		members[name] = MustJSON(value)
	}
	return MustJSON(members)
}

// ErrEmailExists is the refusal of an e-mail address that another user has.
var ErrEmailExists = refusal.Unprocessable(refusal.CodeEmailExists,
	"A user with this email address has already been registered")

// OwnIdentity returns the identity that a user has for an e-mail address or phone number, which is given as who;
// provider is "email" or "phone".
func OwnIdentity(user uuid.UUID, provider, who string, data json.RawMessage, p store.UserPatch) *store.Identity {
	i := &store.Identity{
		ID: uuid.New(), UserID: user, Provider: provider, ProviderID: user.String(),
		Data: Profile(user, provider, who, true, data), LastSignInAt: p.Now, CreatedAt: p.Now, UpdatedAt: p.Now,
	}
	if provider == "email" {
		i.Email = who
	}
	return i
}

// NoteProof records in a patch that the user has proven to own an e-mail address or phone number, which is given as
// who.
func NoteProof(p *store.UserPatch, u store.User, who string) {
	switch {
	case who == "":
	case who == u.Email:
		p.EmailUnproven = new(false)
	case who == u.Phone:
		p.PhoneUnproven = new(false)
	}
}

// RemoveAddress adds the statements that remove the address of a provider ("email" or "phone") from a user, or the
// whole user if the user has no other address and identity. It returns the action for the audit log. An anonymous user
// is never removed, since the user existed before the address.
func RemoveAddress(b *Batch, u store.User, provider string, now time.Time) store.Action {
	elsewhere := u.Phone
	if provider == "phone" {
		elsewhere = u.Email
	}
	rest := slices.ContainsFunc(u.Identities, func(i store.Identity) bool { return i.Provider != provider })
	if elsewhere == "" && !rest && !u.IsAnonymous {
		b.DeleteUser(u.ID)
		b.CancelMessages(u.ID, now)
		return store.ActionUserDeleted
	}
	p := store.UserPatch{ID: u.ID, Now: now, ProvidersFromIdentities: true}
	p.UserMetadata.Delete, p.UserMetadata.Set = []string{provider},
		MustJSON(map[string]bool{provider + "_verified": false})
	kinds := []store.Kind{store.KindSMS, store.KindPhoneChange}
	if provider == "phone" {
		p.Phone, p.PhoneConfirmedAt = new(""), &time.Time{}
	} else {
		p.Email, p.NewEmail, p.ConfirmationSentAt, p.RecoverySentAt = new(""), new(""), &time.Time{}, &time.Time{}
		p.EmailConfirmedAt, p.CurrentEmailProven, p.NewEmailProven = &time.Time{}, new(false), new(false)
		kinds = []store.Kind{store.KindInvite, store.KindRecovery, store.KindMagicLink, store.KindEmailChangeCurrent,
			store.KindEmailChangeNew}
	}
	for _, i := range u.Identities {
		if i.Provider == provider {
			b.DeleteIdentity(i.ID)
		}
	}
	b.UpdateUser(p)
	b.DeleteTokens(u.ID, append(kinds, store.KindSignup, store.KindReauthentication)...)
	return store.ActionUserModified
}

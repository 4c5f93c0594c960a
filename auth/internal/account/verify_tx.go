package account

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// verifyTx gathers the changes of a redeemed token into one batch.
type verifyTx struct {
	f     *flow.Flow
	op    *verifyOp
	b     *flow.Batch
	u     store.User // the user as locked
	t     store.Token
	patch store.UserPatch
	// identity is the identity of the proven address that is to be written; nil: none.
	identity *store.Identity
	// endSessions is the reason for which all older sessions end; "": the sessions stay.
	endSessions string
	// dropForeign is set if external identities are deleted, except the identity that requested the token. claims is
	// set if the owner of the address gets an account that was in use, so that its metadata and verified factors stay.
	dropForeign, claims bool
	// codeHash is the hash of the PKCE code that was issued for the token's flow.
	codeHash      []byte
	action        store.Action
	trait         string // provider by which the user signed up, for the audit row
	notifications []store.NewMessage
}

// apply prepares the changes that the token was sent for. half says that the token was the first of the two proofs of
// an e-mail change.
func (w *verifyTx) apply() (half bool, err error) {
	switch w.t.Kind {
	case store.KindSignup, store.KindInvite, store.KindMagicLink, store.KindRecovery, store.KindSMS:
		return false, w.confirm()
	case store.KindEmailChangeCurrent, store.KindEmailChangeNew:
		return w.changeEmail()
	case store.KindPhoneChange:
		return false, w.changePhone()
	}
	return false, errTokenExpired
}

// confirm makes the address that the token was sent to a proven address, and signs in. An address that was only
// confirmed by autoconfirm counts as unproven. If a concurrent change has taken the address from the user, the token is
// void.
func (w *verifyTx) confirm() error {
	w.action = store.ActionLogin
	provider, at, sent, unproven := "email", w.u.EmailConfirmedAt, w.u.Email, w.u.EmailUnproven
	if !isEmail(w.t.Address) {
		provider, at, sent, unproven = "phone", w.u.PhoneConfirmedAt, w.u.Phone, w.u.PhoneUnproven
	}
	w.trait = provider
	if sent != w.t.Address {
		return errTokenExpired
	}
	w.patch.IsAnonymous = new(false)
	w.claims = unproven && !at.IsZero() && w.f.Settings.ClaimUnproven
	if !at.IsZero() && !w.claims {
		flow.NoteProof(&w.patch, w.u, w.t.Address)
		return nil
	}
	if !w.claims {
		w.action = store.ActionUserSignedUp
	}
	if provider == "email" {
		w.patch.EmailConfirmedAt = &w.f.Now
		w.dropForeign = w.claims || slices.ContainsFunc(w.u.Identities, func(i store.Identity) bool {
			return i.Provider != "email" && i.Provider != "phone" && i.ID != w.t.Identity
		})
	} else {
		w.patch.PhoneConfirmedAt, w.dropForeign = &w.f.Now, w.claims
	}
	// Password and metadata come from the sign-up that the token belongs to. The token of a recovery or a magic link
	// carries none, so the account keeps its password and metadata.
	var data json.RawMessage
	first := w.u.EmailConfirmedAt.IsZero() && w.u.PhoneConfirmedAt.IsZero() || w.dropForeign
	mayChoose := w.u.PasswordHash == "" || w.dropForeign
	if w.t.Kind == store.KindSignup && first {
		data = w.t.UserMetadata
		if mayChoose && w.t.PasswordHash != "" {
			w.patch.PasswordHash = &w.t.PasswordHash
		}
	}
	if w.op.hash != "" && mayChoose && (w.t.Kind == store.KindSignup || w.t.Kind == store.KindInvite) {
		w.patch.PasswordHash = &w.op.hash // the owner of the mailbox chose it
	}
	by := w.confirmedIdentity()
	if by != nil { // the account was created by an external provider's sign-in, and has its data
		w.trait = by.Provider
		w.patch.UserMetadata.Set = flow.MustJSON(map[string]any{"email": w.t.Address, "email_verified": true})
	} else {
		w.putIdentity(provider, w.t.Address, data)
		w.patch.UserMetadata.Set = w.identity.Data
	}
	if w.dropForeign {
		w.dropForeignAccess(provider)
	} else if by == nil && !first {
		w.patch.UserMetadata.Set = flow.MustJSON(map[string]bool{provider + "_verified": true})
	}
	return nil
}

// confirmedIdentity returns the external identity whose sign-in requested this confirmation, or nil if there is none.
func (w *verifyTx) confirmedIdentity() *store.Identity {
	for i := range w.u.Identities {
		if w.u.Identities[i].ID == w.t.Identity {
			return &w.u.Identities[i]
		}
	}
	return nil
}

// dropForeignAccess removes the ways into the account that other persons may have added, before the owner of the
// address gets the account. This is necessary if only autoconfirm had confirmed the address. It is also necessary if
// the account has the identity of an external provider that had not verified the address, and the token belongs to
// another mail than that provider's confirmation.
func (w *verifyTx) dropForeignAccess(provider string) {
	flow.DropOthers(&w.patch, provider)
	w.patch.UserMetadata.Replace = w.identity != nil && !w.claims
	w.endSessions = store.EndedClaimed
}

// putIdentity sets the identity of one of the user's own addresses: who is the e-mail address or phone number.
func (w *verifyTx) putIdentity(provider, who string, data json.RawMessage) {
	w.identity = flow.OwnIdentity(w.u.ID, provider, who, data, w.patch)
	w.patch.ProvidersFromIdentities = true
}

// changeEmail handles one of the two proofs of an e-mail change: of the current and of the new address. For each of the
// two addresses there is a flag, which only a token that was sent to the address sets. The new address must always be
// proven.
func (w *verifyTx) changeEmail() (half bool, err error) {
	current := w.t.Kind == store.KindEmailChangeCurrent
	if w.u.NewEmail == "" || current && w.t.Address != w.u.Email || !current && w.t.Address != w.u.NewEmail {
		return false, errTokenExpired
	}
	flow.NoteProof(&w.patch, w.u, w.t.Address)
	both := w.f.Settings.Email.SecureChange && w.u.Email != "" && !w.f.Settings.Email.Autoconfirm
	currentProven, newProven := w.u.CurrentEmailProven || current, w.u.NewEmailProven || !current
	if !newProven || both && !currentProven {
		w.patch.CurrentEmailProven, w.patch.NewEmailProven = &currentProven, &newProven
		return true, nil
	}
	w.action = store.ActionUserModified
	w.patch.Email = &w.u.NewEmail
	w.firstPassword()
	flow.DropChanges(&w.patch) // the tokens of the change are deleted together with the redeemed token
	w.patch.IsAnonymous, w.patch.EmailUnproven = new(false), new(false)
	if w.u.EmailConfirmedAt.IsZero() {
		w.patch.EmailConfirmedAt = &w.f.Now
	}
	w.putIdentity("email", w.u.NewEmail, nil)
	w.patch.UserMetadata.Set = flow.MustJSON(map[string]any{"email": w.u.NewEmail, "email_verified": true})
	if w.u.Email != "" && w.f.Settings.Email.ChangeEndsSessions {
		w.endSessions = store.EndedEmailChanged
	}
	if w.u.Email != "" && w.f.Settings.Email.Notify.EmailChanged {
		w.notify(mail.EmailChanged, w.u.Email, mail.Vars{Email: w.u.NewEmail, OldEmail: w.u.Email})
	}
	return false, nil
}

func (w *verifyTx) changePhone() error {
	if w.u.NewPhone == "" || subtle.ConstantTimeCompare([]byte(w.t.Address), []byte(w.u.NewPhone)) == 0 {
		return errTokenExpired
	}
	w.action = store.ActionUserModified
	w.firstPassword()
	flow.DropChanges(&w.patch) // the tokens of the change are deleted together with the redeemed token
	w.patch.Phone, w.patch.IsAnonymous, w.patch.PhoneConfirmedAt = &w.u.NewPhone, new(false), &w.f.Now
	w.putIdentity("phone", w.u.NewPhone, nil)
	w.patch.UserMetadata.Set = flow.MustJSON(map[string]any{"phone": w.u.NewPhone, "phone_verified": true})
	if w.u.Email == "" {
		return nil
	}
	if w.u.Phone != "" && w.f.Settings.Email.Notify.PhoneChanged {
		w.notify(mail.PhoneChanged, w.u.Email, mail.Vars{Email: w.u.Email, Phone: w.u.NewPhone, OldPhone: w.u.Phone})
	}
	linked := slices.ContainsFunc(w.u.Identities, func(i store.Identity) bool { return i.Provider == "phone" })
	if !linked && w.f.Settings.Email.Notify.IdentityLinked {
		w.notify(mail.IdentityLinked, w.u.Email, mail.Vars{Email: w.u.Email, Provider: "phone"})
	}
	return nil
}

// firstPassword sets the password that was given together with the account's first address.
func (w *verifyTx) firstPassword() {
	if w.u.Email == "" && w.u.Phone == "" && w.t.PasswordHash != "" {
		w.patch.PasswordHash = &w.t.PasswordHash
	}
}

func (w *verifyTx) notify(kind mail.Kind, to string, v mail.Vars) {
	if w.op.notify {
		v.Data = w.u.UserMetadata
		w.notifications = append(w.notifications, flow.Notification(w.f, kind, to, v))
	}
}

// fill adds all changes to the batch, in the order in which all flows lock rows.
func (w *verifyTx) fill(out flow.Verified) {
	if w.dropForeign {
		w.b.DeletePlaces(w.u.ID)
		w.b.DeleteIdentitiesBut(w.u.ID, w.t.Identity, true)
	}
	if w.identity != nil {
		w.b.PutIdentity(*w.identity)
	}
	w.patch.UserMetadata = w.f.Settings.WithinLimit(w.u, w.patch.UserMetadata)
	w.b.UpdateUser(w.patch)
	if w.patch.EmailConfirmedAt != nil {
		w.b.VerifyIdentities(w.u.ID, w.t.Address, w.f.Now)
	}
	if w.endSessions != "" {
		w.b.EndSessions(store.EndSessions{User: w.u.ID, Reason: w.endSessions, At: w.f.Now})
	}
	if out.Half {
		return
	}
	if out.Code == "" {
		w.b.InsertSession(w.op.open.Row)
	}
	w.b.DeleteTokens(w.u.ID)
	if out.Code != "" {
		w.b.IssueCode(w.t.Flow, w.codeHash, w.f.Now, w.u.ID)
	}
	if w.claims {
		w.b.DeleteUnverified(w.u.ID, "") // verified factors stay: access to the mailbox must not remove them
		w.b.DeletePasskeys(w.u.ID)       // passkeys are deleted: each is a way into the account
	} else if w.dropForeign {
		w.b.DeleteFactors(w.u.ID)
	}
	w.b.Notify(w.u.ID, w.notifications...)
	w.b.Audit(w.f.Audit(w.action, w.u.ID, w.op.open.Row.ID, "provider", w.trait))
}

// displaceUnproven removes an address that was just proven from another account that never proved it. It deletes that
// account's identity of the address and the tokens that were sent to the address, and the account itself if it has no
// other address and identity.
func (w *verifyTx) displaceUnproven(ctx context.Context, tx *flow.Tx) error {
	var other store.User
	provider, b := "email", tx.Batch()
	if w.t.Kind == store.KindPhoneChange {
		provider = "phone"
		b.UserByPhone(&other, w.u.Aud, w.t.Address)
	} else {
		b.UserByEmail(&other, w.u.Aud, w.u.NewEmail)
	}
	if err := b.Send(ctx); err != nil || other.ID == uuid.Nil || other.ID == w.u.ID {
		return err
	}
	address := other.Email
	if provider == "phone" {
		address = other.Phone
	}
	locked, err := tx.LockUser(ctx, other.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil // another request has deleted the account
	}
	if err != nil || !yields(w.f.Settings, locked, provider, address) {
		return err // the other account has proven the address by now: the unique index refuses the change
	}
	// LockUser may have read the identities before it got the lock
	if err := tx.Run(ctx, func(b *flow.Batch) { b.Identities(&locked.Identities, locked.ID) }); err != nil {
		return err
	}
	b = tx.Batch()
	action := flow.RemoveAddress(b, locked, provider, w.f.Now)
	b.Audit(w.f.Audit(action, w.u.ID, uuid.Nil, "user_id", locked.ID.String(), "reason", "address_proven"))
	return b.Send(ctx)
}

// yields reports whether user u has an address that another user gets by proving it.
func yields(s *flow.Settings, u store.User, provider, address string) bool {
	if provider == "phone" {
		return u.Phone == address && (u.PhoneConfirmedAt.IsZero() || leaves(s, u, address))
	}
	return u.Email == address && (u.EmailConfirmedAt.IsZero() || leaves(s, u, address))
}

// leaves reports whether only autoconfirm has confirmed the address and the user has proven another address. Then the
// user keeps the account, and the address leaves it for the user who proves it.
func leaves(s *flow.Settings, u store.User, address string) bool {
	both := u.Email != "" && u.Phone != "" && !u.EmailConfirmedAt.IsZero() && !u.PhoneConfirmedAt.IsZero()
	return s.ClaimUnproven && both && (address == u.Email && u.EmailUnproven && !u.PhoneUnproven ||
		address == u.Phone && u.PhoneUnproven && !u.EmailUnproven)
}

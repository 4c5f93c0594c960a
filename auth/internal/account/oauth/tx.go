package oauth

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// oauthTx gathers the changes of an oauthOp into one batch.
type oauthTx struct {
	f   *flow.Flow
	op  *oauthOp
	b   *flow.Batch
	old store.User // the user as locked, or a new user
	// identity is the identity with which the user signs in. known says whether the account has it already.
	identity      store.Identity
	known         bool
	created       bool
	data          json.RawMessage
	patch         store.UserPatch
	email         emailOutcome
	outgoing      []flow.Outgoing
	notifications []store.NewMessage
	audits        []store.Audit
}

// findIdentity finds the identity among the user's identities, or prepares a new one.
func (w *oauthTx) findIdentity() {
	for _, i := range w.old.Identities {
		if slices.Contains(w.op.names, i.Provider) && i.ProviderID == w.op.Profile.Subject {
			w.identity, w.known = i, true
		}
	}
	w.data = identityData(&w.op.Profile, &w.op.emails, w.identity.Data)
	if w.known {
		return
	}
	w.identity = store.Identity{
		ID: uuid.New(), UserID: w.old.ID, Provider: w.op.Profile.Provider, ProviderID: w.op.Profile.Subject,
		Email: w.op.emails.matched(), Data: w.data, LastSignInAt: w.f.Now, CreatedAt: w.f.Now, UpdatedAt: w.f.Now,
	}
}

// reconcile adds to the patch what happens to the user's address, and prepares the confirmation mail if one is needed.
func (w *oauthTx) reconcile() error {
	if w.email.adopt != "" {
		w.patch.Email = &w.email.adopt
		w.old.Email = w.email.adopt // as it is inserted if the user is new
	}
	if w.email.confirm {
		w.patch.EmailConfirmedAt, w.patch.IsAnonymous = &w.f.Now, new(false)
		w.patch.EmailUnproven = &w.email.unproven
		if w.data = flow.Merge(w.data, flow.MustJSON(map[string]any{"email_verified": true})); w.email.adopt == "" &&
			w.old.Email != "" {
			w.data = flow.Merge(w.data, flow.MustJSON(map[string]any{"email": w.old.Email}))
		}
	}
	switch {
	case w.email.confirmByMail:
		if err := w.confirmation(); err != nil {
			return err
		}
		if w.email.refuse {
			w.refuse(refusal.CodeProviderEmailUnverified, confirmationSent)
		}
	case w.email.refuse:
		w.refuse(refusal.CodeProviderEmailUnverified,
			"Unverified email with %s. Verify the email with %[1]s in order to sign in")
	}
	return nil
}

const confirmationSent = "Unverified email with %s. A confirmation email has been sent to your %[1]s email"

// refuse makes the request end with a refusal after the commit. Its text is made from the format words, which has a
// place for the provider's name.
func (w *oauthTx) refuse(code, words string) {
	w.b.Refuse(refusal.Unprocessable(code, fmt.Sprintf(words, w.op.Profile.Provider)))
}

// confirmation prepares the mail that asks the user to confirm the address. Only once the user is locked is it known
// whether the mail is needed, but the mail's limits must be taken before the lock. So the first call sets op.quota and
// returns errRaced, which makes the operation start over.
func (w *oauthTx) confirmation() error {
	to := w.old.Email
	if w.op.mailSkipped {
		return nil
	}
	if w.op.quota == nil || w.op.confirmTo != to {
		w.op.confirmTo, w.op.mailOptional = to, !w.email.refuse
		w.op.quota = flow.MailQuota(w.f, "confirmation", w.f.Settings.Email.ConfirmationInterval, w.old.Aud, to)
		return errRaced
	}
	msg, err := flow.NewConfirmation(w.f, to, w.data, nil)
	msg.Token.Identity = w.identity.ID // the account has the data of this identity already
	w.outgoing = append(w.outgoing, msg)
	w.patch.ConfirmationSentAt = &w.f.Now
	return err
}

// audit adds the audit rows, the most important one first.
func (w *oauthTx) audit(d accountDecision) {
	if d.resolution == userLinked {
		w.note(store.ActionIdentityLinked, "identity_id", w.identity.ID.String(), "provider", w.identity.Provider,
			"provider_id", w.identity.ProviderID)
	}
	switch {
	case w.email.confirm && w.old.EmailConfirmedAt.IsZero() || d.resolution == userCreated && !w.email.refuse:
		w.note(store.ActionUserSignedUp, "provider", w.op.Profile.Provider)
	case !w.email.refuse:
		w.note(store.ActionLogin, "provider", w.op.Profile.Provider)
	default:
		w.note(store.ActionUserConfirmationRequested, "provider", w.op.Profile.Provider)
	}
}

func (w *oauthTx) note(action store.Action, pairs ...string) {
	w.audits = append(w.audits, w.f.Audit(action, w.old.ID, uuid.Nil, pairs...))
}

// recordRefusal records a refused sign-in and stores nothing else. If it created a user without an address for the
// identity, a later sign-in with a verified address would lead to this user instead of the account that has the
// address.
func (w *oauthTx) recordRefusal(ctx context.Context, d accountDecision) error {
	row := w.f.Audit(store.ActionLoginFailed, w.old.ID, uuid.Nil, "reason", refusal.CodeProviderEmailUnverified,
		"provider", w.op.Profile.Provider)
	if d.resolution == userCreated {
		row.Actor = uuid.Nil
	}
	w.b.Audit(row)
	return w.b.Send(ctx)
}

// deleteAbandoned adds the statement that deletes the user owner, unless owner is Nil. This user has no way to sign in
// but the identity that is about to be added to another account, and has never signed in (accountDecision.abandoned).
func (w *oauthTx) deleteAbandoned(owner uuid.UUID) {
	if owner != uuid.Nil {
		w.b.DeleteAbandoned(owner)
	}
}

// insertUser adds the statements that create the new user.
func (w *oauthTx) insertUser() {
	u := w.old
	u.UserMetadata, u.EmailConfirmedAt = w.f.Settings.WithinLimit(store.User{}, store.MetadataPatch{Set: w.data}).Set,
		w.email.confirmedAt(w.f.Now)
	u.EmailUnproven = w.email.unproven
	if len(w.outgoing) > 0 {
		u.ConfirmationSentAt = w.f.Now
	}
	if !w.email.refuse && w.op.Challenge.Challenge == "" {
		u.LastSignInAt = w.f.Now
	}
	w.b.InsertUser(u)
	w.b.InsertIdentity(w.identity)
	w.created = true
}

// updateUser adds the statements that write the changes of an existing user.
func (w *oauthTx) updateUser() {
	b, id := w.b, w.old.ID
	if w.known {
		b.RefreshIdentity(w.identity.ID, w.op.emails.matched(),
			identityData(&w.op.Profile, &w.op.emails, w.identity.Data), w.f.Now)
	} else {
		b.InsertIdentity(w.identity)
		w.notifyLinked()
	}
	if w.email.claim {
		w.clearAccount()
	}
	if !w.email.refuse && w.op.Challenge.Challenge == "" {
		w.patch.LastSignInAt = &w.f.Now
	}
	w.patch.UserMetadata = w.f.Settings.WithinLimit(w.old, w.patch.UserMetadata)
	b.UpdateUser(w.patch)
	if w.email.claim {
		b.EndSessions(store.EndSessions{User: id, Reason: store.EndedClaimed, At: w.f.Now})
	}
	if w.email.confirm {
		b.DeleteTokens(id)
	}
	if w.email.claim {
		b.DeleteFlows(id)
	}
	if w.email.live {
		b.DeleteUnverified(id, "") // verified factors stay: an external provider must not remove them
		b.DeletePasskeys(id)       // passkeys are deleted: each is a way into the account
	} else if w.email.claim {
		b.DeleteFactors(id)
	}
}

// clearAccount removes, from an account whose address nobody has proven, all ways to sign in that other persons may
// have added: password, phone, other identities and, unless the account was in use, metadata. updateUser also deletes
// its sessions, tokens, flows and factors.
func (w *oauthTx) clearAccount() {
	flow.DropOthers(&w.patch, "email")
	w.patch.UserMetadata.Replace = !w.email.live
	w.b.DeletePlaces(w.old.ID)
	w.b.DeleteIdentitiesBut(w.old.ID, w.identity.ID, true)
}

// notifyLinked adds a mail that notifies the user of the new identity, if that is switched on.
func (w *oauthTx) notifyLinked() {
	to := w.old.Email
	if !w.op.notify || !w.f.Settings.Email.Notify.IdentityLinked || to == "" || w.email.claim && !w.email.live {
		return // the account was never confirmed, so there is no previous owner to notify
	}
	w.notifications = append(w.notifications, flow.Notification(w.f, mail.IdentityLinked, to,
		mail.Vars{Email: to, Provider: w.identity.Provider, Data: w.old.UserMetadata}))
}

// finish adds the session, or the flow whose code the client exchanges for a session, and sends the batch.
func (w *oauthTx) finish(ctx context.Context) error {
	op, b, id := w.op, w.b, w.old.ID
	var session uuid.UUID
	issued := b.Refusal == nil && op.Challenge.Challenge != ""
	if b.Refusal == nil && !issued {
		op.open = flow.NewSession(&op.f, id, methodOAuth)
		if op.exchange != nil {
			op.open.SetID(op.exchange.pkce.Session)
		}
		if op.level > 1 {
			op.open.Row.AAL, op.open.Row.AMR = op.level, joinAMR(op.open.Row.AMR, op.methods)
		}
		session = op.open.Row.ID
		b.InsertSession(op.open.Row)
	}
	for _, msg := range w.outgoing {
		msg.Token.User = id
		b.InsertToken(msg.Token)
	}
	if issued {
		f, hash := op.issueFlow(id)
		b.InsertIssuedFlow(f, hash)
	}
	for _, msg := range w.outgoing {
		b.Message(id, msg.Message)
	}
	b.Notify(id, w.notifications...)
	if w.created {
		flow.EnqueueCreatedHook(w.f, b, true, id)
	}
	for _, a := range w.audits {
		a.Session = session
		b.Audit(a)
	}
	b.User(&op.user, id)
	return b.Send(ctx)
}

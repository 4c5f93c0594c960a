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
	old store.User // the locked user, or the new user
	// identity is the identity that was presented: known, or to be added.
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

// findIdentity finds the identity among the user's identities, or creates it.
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

// reconcile puts the outcome for the address into the patch, and writes the confirmation mail.
func (w *oauthTx) reconcile() error {
	if w.email.adopt != "" {
		w.patch.Email = &w.email.adopt
		w.old.Email = w.email.adopt // a new user, as inserted
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

// refuse makes the flow answer with a refusal after the commit; words has a place for the provider's name.
func (w *oauthTx) refuse(code, words string) {
	w.b.Refuse(refusal.Unprocessable(code, fmt.Sprintf(words, w.op.Profile.Provider)))
}

// confirmation writes the mail that asks to confirm the address. Whether it is needed is known only under the lock, but
// its limits must be taken before the lock: so, at first, the operation starts over.
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
	msg.Token.Identity = w.identity.ID // the account has this identity's data already
	w.outgoing = append(w.outgoing, msg)
	w.patch.ConfirmationSentAt = &w.f.Now
	return err
}

// audit adds the audit rows, the most important first.
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

// recordRefusal records a refused sign-in and stores nothing else: if a user without an address were created for the
// identity, a later sign-in with a verified address could not reach the account that has the address.
func (w *oauthTx) recordRefusal(ctx context.Context, d accountDecision) error {
	row := w.f.Audit(store.ActionLoginFailed, w.old.ID, uuid.Nil, "reason", refusal.CodeProviderEmailUnverified,
		"provider", w.op.Profile.Provider)
	if d.resolution == userCreated {
		row.Actor = uuid.Nil
	}
	w.b.Audit(row)
	return w.b.Send(ctx)
}

// deleteAbandoned deletes the abandoned owner of the identity that is about to be added.
func (w *oauthTx) deleteAbandoned(owner uuid.UUID) {
	if owner != uuid.Nil {
		w.b.DeleteAbandoned(owner)
	}
}

// insertUser adds a new user in its final state.
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

// updateUser writes the changes of an existing user.
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
		b.DeleteUnverified(id, "") // verified factors stay: a provider must not remove them
		b.DeletePasskeys(id)       // passkeys go: they are a way into the account
	} else if w.email.claim {
		b.DeleteFactors(id)
	}
}

// clearAccount removes from an account whose address nobody has proven all ways in that other persons may have added:
// password, phone, other identities, metadata unless the account was in use; updateUser also deletes sessions, tokens,
// flows and factors.
func (w *oauthTx) clearAccount() {
	flow.DropOthers(&w.patch, "email")
	w.patch.UserMetadata.Replace = !w.email.live
	w.b.DeletePlaces(w.old.ID)
	w.b.DeleteIdentitiesBut(w.old.ID, w.identity.ID, true)
}

// notifyLinked notifies the user of the new identity.
func (w *oauthTx) notifyLinked() {
	to := w.old.Email
	if !w.op.notify || !w.f.Settings.Email.Notify.IdentityLinked || to == "" || w.email.claim && !w.email.live {
		return // an account that was never confirmed has no previous owner to notify
	}
	w.notifications = append(w.notifications, flow.Notification(w.f, mail.IdentityLinked, to,
		mail.Vars{Email: to, Provider: w.identity.Provider, Data: w.old.UserMetadata}))
}

// finish adds the session, or the flow with a code for one, and sends the batch.
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

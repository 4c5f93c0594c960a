package account

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// arrival is what an entry does to its user, gathered into one batch.
type arrival struct {
	f   *flow
	op  *entry
	b   *store.Batch
	old store.User // as locked; the new one when he is created
	// identity is the one that he came by: known, or to be added.
	identity      store.Identity
	known         bool
	created       bool
	data          json.RawMessage
	patch         store.UserPatch
	settlement    settlement
	outgoing      []outgoing
	notifications []store.NewMessage
	audits        []store.Audit
}

// arrive finds the identity among the user's, or makes it.
func (w *arrival) arrive() {
	for _, i := range w.old.Identities {
		if slices.Contains(w.op.names, i.Provider) && i.ProviderID == w.op.profile.Subject {
			w.identity, w.known = i, true
		}
	}
	w.data = identityData(&w.op.profile, &w.op.mails, w.identity.Data)
	if w.known {
		return
	}
	w.identity = store.Identity{
		ID: uuid.New(), UserID: w.old.ID, Provider: w.op.profile.Provider, ProviderID: w.op.profile.Subject, Email: w.op.mails.matched(), Data: w.data,
		LastSignInAt: w.f.now, CreatedAt: w.f.now, UpdatedAt: w.f.now,
	}
}

// settled puts the settlement into the patch, and writes the letter.
func (w *arrival) settled(d decision) error {
	if w.settlement.adopt != "" {
		w.patch.Email = &w.settlement.adopt
		w.old.Email = w.settlement.adopt // of a new user, as he is inserted
	}
	if w.settlement.confirm {
		w.patch.EmailConfirmedAt, w.patch.IsAnonymous = &w.f.now, ptr(false)
		if w.data = merge(w.data, object(map[string]any{"email_verified": true})); w.settlement.adopt == "" && w.old.Email != "" {
			w.data = merge(w.data, object(map[string]any{"email": w.old.Email}))
		}
	}
	switch {
	case w.settlement.letter:
		if err := w.confirmation(); err != nil {
			return err
		}
		if w.settlement.refuse {
			w.op.refusal = unprocessable(CodeProviderEmailUnverified, fmt.Sprintf("Unverified email with %s. A confirmation email has been sent to your %s email", w.op.profile.Provider, w.op.profile.Provider))
		}
	case w.settlement.refuse:
		w.op.refusal = unprocessable(CodeProviderEmailUnverified, fmt.Sprintf("Unverified email with %s. Verify the email with %s in order to sign in", w.op.profile.Provider, w.op.profile.Provider))
	}
	return nil
}

// confirmation is the mail that asks whether the address is his. That one is needed shows only under the
// lock, and what it costs is taken before it: so the first time the entry begins again.
func (w *arrival) confirmation() error {
	to := w.old.Email
	if w.op.unsent {
		return nil
	}
	if w.op.quota == nil || w.op.asked != to {
		w.op.asked, w.op.lenient = to, !w.settlement.refuse
		w.op.quota = mailQuota(w.f, "confirmation", w.f.settings.Email.ConfirmationInterval, w.old.Aud, to)
		return errMoved
	}
	cand := &signupCandidate{aud: w.old.Aud, provider: "email", address: to, data: w.data, identity: w.identity.ID}
	msg, err := newConfirmation(w.f, cand, w.old.ID, nil)
	msg.token.UserMetadata = nil // what the provider says is the account's already
	w.outgoing = append(w.outgoing, msg)
	w.patch.ConfirmationSentAt = &w.f.now
	return err
}

// audit notes what happens, in the order of its weight.
func (w *arrival) audit(d decision) {
	if d.outcome == link {
		w.note(store.ActionIdentityLinked, "identity_id", w.identity.ID.String(), "provider", w.identity.Provider, "provider_id", w.identity.ProviderID)
	}
	switch {
	case w.settlement.confirm || d.outcome == create && !w.settlement.refuse:
		w.note(store.ActionUserSignedUp, "provider", w.op.profile.Provider)
	case !w.settlement.refuse:
		w.note(store.ActionLogin, "provider", w.op.profile.Provider)
	default:
		w.note(store.ActionUserConfirmationRequested, "provider", w.op.profile.Provider)
	}
}

func (w *arrival) note(action store.Action, pairs ...string) {
	w.audits = append(w.audits, w.f.audit(action, w.old.ID, uuid.Nil, pairs...))
}

// turnAway notes a refused sign-in and stores nothing else: a user without address who owned the identity would
// keep a later try, with a verified address, from its own account.
func (w *arrival) turnAway(ctx context.Context, d decision) error {
	row := w.f.audit(store.ActionLoginFailed, w.old.ID, uuid.Nil, "reason", CodeProviderEmailUnverified, "provider", w.op.profile.Provider)
	if d.outcome == create {
		row.Actor = uuid.Nil
	}
	w.b.Audit(row)
	return w.b.Send(ctx)
}

// evict removes the abandoned owner of the identity that is about to be added.
func (w *arrival) evict(owner uuid.UUID) {
	if owner != uuid.Nil {
		w.b.DeleteAbandoned(owner)
	}
}

// insert adds a new user as he is from now on.
func (w *arrival) insert() {
	u := w.old
	u.UserMetadata, u.EmailConfirmedAt = w.f.settings.withinLimit(store.User{}, store.MetadataPatch{Set: w.data}).Set, w.settlement.confirmedAt(w.f.now)
	if len(w.outgoing) > 0 {
		u.ConfirmationSentAt = w.f.now
	}
	if !w.settlement.refuse && w.op.challenge.Challenge == "" {
		u.LastSignInAt = w.f.now
	}
	w.b.InsertUser(u)
	w.b.InsertIdentity(w.identity)
	w.created = true
}

// change brings a user up to date.
func (w *arrival) change(d decision) {
	b, id := w.b, w.old.ID
	if w.known {
		b.RefreshIdentity(w.identity.ID, w.op.mails.matched(), identityData(&w.op.profile, &w.op.mails, w.identity.Data), w.f.now)
	} else {
		b.InsertIdentity(w.identity)
		w.linked()
	}
	if w.settlement.claim {
		w.clear()
	}
	if !w.settlement.refuse && w.op.challenge.Challenge == "" {
		w.patch.LastSignInAt = &w.f.now
	}
	w.patch.UserMetadata = w.f.settings.withinLimit(w.old, w.patch.UserMetadata)
	b.UpdateUser(w.patch)
	if w.settlement.claim {
		b.EndSessions(store.EndSessions{User: id, Reason: store.EndedClaimed, At: w.f.now})
	}
	if w.settlement.confirm {
		b.DeleteTokens(id)
	}
	if w.settlement.claim {
		b.DeleteFlows(id)
		b.DeleteFactors(id)
	}
}

// clear takes out of an account that was nobody's whatever somebody may have left in it to come back by:
// password, phone, metadata, other identities; sessions, tokens, flows and factors go with it.
func (w *arrival) clear() {
	p := &w.patch
	p.PasswordHash, p.Phone, p.PhoneConfirmedAt = ptr(""), ptr(""), &time.Time{}
	p.NewEmail, p.NewPhone, p.CurrentEmailProven, p.NewEmailProven = ptr(""), ptr(""), ptr(false), ptr(false)
	p.UserMetadata.Replace = true
	w.b.DeletePlaces(w.old.ID)
	w.b.DeleteIdentitiesBut(w.old.ID, w.identity.ID, true)
}

// linked tells the user that there is another way into his account.
func (w *arrival) linked() {
	to := w.old.Email
	if !w.op.notify || !w.f.settings.Email.NotifyIdentityLinked || to == "" || w.settlement.confirm && w.settlement.claim {
		return // a claimed account has nobody to be told
	}
	w.notifications = append(w.notifications, notification(w.f, mail.IdentityLinked, to,
		mail.Vars{Email: to, Provider: w.identity.Provider, Data: w.old.UserMetadata}))
}

// finish adds the session, or the code for one, and sends all of it.
func (w *arrival) finish(ctx context.Context) error {
	e, b, id := w.op, w.b, w.old.ID
	var session uuid.UUID
	issued := w.op.refusal == nil && e.challenge.Challenge != ""
	if w.op.refusal == nil && !issued {
		e.open = newSession(e.f, id, methodOAuth)
		if e.exchange != nil {
			e.open.setID(e.exchange.pkce.Session)
		}
		if e.level > 1 {
			e.open.row.AAL, e.open.row.AMR = e.level, joinAMR(e.open.row.AMR, e.methods)
		}
		session = e.open.row.ID
		b.InsertSession(e.open.row)
	}
	for _, msg := range w.outgoing {
		msg.token.User = id
		b.InsertToken(msg.token)
	}
	if issued {
		f, hash := e.issueFlow(id)
		b.InsertIssuedFlow(f, hash)
	}
	for _, msg := range w.outgoing {
		msg.message.User = id
		b.InsertMessage(msg.message)
	}
	for _, m := range w.notifications {
		m.User = id
		b.InsertMessage(m)
	}
	if w.created {
		enqueueCreatedHook(w.f, b, true, id)
	}
	e.notified, e.sent = len(w.notifications), w.outgoing
	for _, a := range w.audits {
		a.Session = session
		b.Audit(a)
	}
	b.User(&e.user, id)
	return b.Send(ctx)
}

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
	*entry
	b   *store.Batch
	old store.User // as locked; the new one when he is created
	// identity is the one that he came by: known, or to be added.
	identity store.Identity
	known    bool
	created  bool
	data     json.RawMessage
	patch    store.UserPatch
	settlement
	letters []letter
	notice  []store.NewMessage
	audits  []store.Audit
}

// arrive finds the identity among the user's, or makes it.
func (w *arrival) arrive() {
	for _, i := range w.old.Identities {
		if slices.Contains(w.names, i.Provider) && i.ProviderID == w.profile.Subject {
			w.identity, w.known = i, true
		}
	}
	w.data = identityData(&w.profile, &w.mails, w.identity.Data)
	if w.known {
		return
	}
	w.identity = store.Identity{
		ID: uuid.New(), UserID: w.old.ID, Provider: w.profile.Provider, ProviderID: w.profile.Subject, Email: w.mails.matched(), Data: w.data,
		LastSignInAt: w.now, CreatedAt: w.now, UpdatedAt: w.now,
	}
}

// settled puts the settlement into the patch, and writes the letter.
func (w *arrival) settled(d decision) error {
	if w.adopt != "" {
		w.patch.Email = &w.adopt
		w.old.Email = w.adopt // of a new user, as he is inserted
	}
	if w.confirm {
		w.patch.EmailConfirmedAt, w.patch.IsAnonymous = &w.now, ptr(false)
		if w.data = merge(w.data, object(map[string]any{"email_verified": true})); w.adopt == "" && w.old.Email != "" {
			w.data = merge(w.data, object(map[string]any{"email": w.old.Email}))
		}
	}
	switch {
	case w.letter:
		if err := w.confirmation(); err != nil {
			return err
		}
		if w.refuse {
			w.refusal = unprocessable(CodeProviderEmailUnverified, fmt.Sprintf("Unverified email with %s. A confirmation email has been sent to your %s email", w.profile.Provider, w.profile.Provider))
		}
	case w.refuse:
		w.refusal = unprocessable(CodeProviderEmailUnverified, fmt.Sprintf("Unverified email with %s. Verify the email with %s in order to sign in", w.profile.Provider, w.profile.Provider))
	}
	return nil
}

// confirmation is the mail that asks whether the address is his. That one is needed shows only under the
// lock, and what it costs is taken before it: so the first time the entry begins again.
func (w *arrival) confirmation() error {
	to := w.old.Email
	if w.unsent {
		return nil
	}
	if w.quota == nil || w.asked != to {
		w.entry.asked, w.entry.lenient = to, !w.refuse
		w.entry.quota = w.mailQuota(w.s, "confirmation", w.s.Email.ConfirmationInterval, w.old.Aud, to)
		return errMoved
	}
	n := &newcomer{aud: w.old.Aud, provider: "email", who: to, data: w.data, identity: w.identity.ID}
	l, err := w.Accounts.confirmation(w.s, w.c, n, w.old.ID, nil, w.now)
	l.token.UserMetadata = nil // what the provider says is the account's already
	w.letters = append(w.letters, l)
	w.patch.ConfirmationSentAt = &w.now
	return err
}

// audit notes what happens, in the order of its weight.
func (w *arrival) audit(d decision) {
	if d.outcome == link {
		w.note(store.ActionIdentityLinked, "identity_id", w.identity.ID.String(), "provider", w.identity.Provider, "provider_id", w.identity.ProviderID)
	}
	switch {
	case w.confirm || d.outcome == create && !w.refuse:
		w.note(store.ActionUserSignedUp, "provider", w.profile.Provider)
	case !w.refuse:
		w.note(store.ActionLogin, "provider", w.profile.Provider)
	default:
		w.note(store.ActionUserConfirmationRequested, "provider", w.profile.Provider)
	}
}

func (w *arrival) note(action store.Action, pairs ...string) {
	w.audits = append(w.audits, store.Audit{At: w.now, Action: action, Actor: w.old.ID, IP: w.c.IP, Traits: traits(pairs...)})
}

// turnAway notes a refused sign-in and stores nothing else: a user without address who owned the identity would
// keep a later try, with a verified address, from its own account.
func (w *arrival) turnAway(ctx context.Context, d decision) error {
	row := store.Audit{At: w.now, Action: store.ActionLoginFailed, Actor: w.old.ID, IP: w.c.IP,
		Traits: traits("reason", CodeProviderEmailUnverified, "provider", w.profile.Provider)}
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
	u.UserMetadata, u.EmailConfirmedAt = w.s.withinLimit(store.User{}, store.MetadataPatch{Set: w.data}).Set, w.confirmedAt(w.now)
	if len(w.letters) > 0 {
		u.ConfirmationSentAt = w.now
	}
	if !w.refuse && w.challenge.Challenge == "" {
		u.LastSignInAt = w.now
	}
	w.b.InsertUser(u)
	w.b.InsertIdentity(w.identity)
	w.created = true
}

// change brings a user up to date.
func (w *arrival) change(d decision) {
	b, id := w.b, w.old.ID
	if w.known {
		b.RefreshIdentity(w.identity.ID, w.mails.matched(), identityData(&w.profile, &w.mails, w.identity.Data), w.now)
	} else {
		b.InsertIdentity(w.identity)
		w.linked()
	}
	if w.claim {
		w.clear()
	}
	if !w.refuse && w.challenge.Challenge == "" {
		w.patch.LastSignInAt = &w.now
	}
	w.patch.UserMetadata = w.s.withinLimit(w.old, w.patch.UserMetadata)
	b.UpdateUser(w.patch)
	if w.claim {
		b.EndSessions(store.EndSessions{User: id, Reason: store.EndedClaimed, At: w.now})
	}
	if w.confirm {
		b.DeleteTokens(id)
	}
	if w.claim {
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
	if !w.notices || !w.s.Email.NotifyIdentityLinked || to == "" || w.confirm && w.claim {
		return // a claimed account has nobody to be told
	}
	w.notice = append(w.notice, w.notification(w.s, w.c, mail.IdentityLinked, to,
		mail.Vars{Email: to, Provider: w.identity.Provider, Data: w.old.UserMetadata}, w.now))
}

// finish adds the session, or the code for one, and sends all of it.
func (w *arrival) finish(ctx context.Context) error {
	e, b, id := w.entry, w.b, w.old.ID
	var session uuid.UUID
	issued := w.refusal == nil && e.challenge.Challenge != ""
	if w.refusal == nil && !issued {
		e.open = e.opening(e.s, e.c, id, methodOAuth, e.now)
		if e.exchange != nil {
			e.open.as(e.exchange.flow.Session)
		}
		if e.level > 1 {
			e.open.AAL, e.open.AMR = e.level, joinAMR(e.open.AMR, e.methods)
		}
		session = e.open.ID
		b.InsertSession(e.open.NewSession)
	}
	for _, l := range w.letters {
		l.token.User = id
		b.InsertToken(l.token)
	}
	if issued {
		f, hash := e.issueFlow(id)
		b.InsertIssuedFlow(f, hash)
	}
	for _, l := range w.letters {
		l.message.User = id
		b.InsertMessage(l.message)
	}
	for _, m := range w.notice {
		m.User = id
		b.InsertMessage(m)
	}
	if w.created {
		w.tell(b, w.s, w.c, true, id, w.now)
	}
	e.told, e.sent = len(w.notice), w.letters
	for _, a := range w.audits {
		a.Session = session
		b.Audit(a)
	}
	b.User(&e.user, id)
	return b.Send(ctx)
}

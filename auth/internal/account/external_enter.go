package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// methodOAuth is the amr method of a session that a provider vouches for.
const methodOAuth = "oauth"

// entry is one arrival of somebody whom a provider vouches for: a sign-in, an accepted invitation, or an
// identity to be linked.
type entry struct {
	*Accounts
	s       *Settings
	c       Client
	now     time.Time
	profile provider.Profile
	names   []string // under which its identities may be stored, the present one first
	mails   addresses
	// optional: no address is needed. strict: without one it ends before anything is looked up.
	optional, strict bool
	// challenge: the client gets a code for it. Else it gets the session.
	challenge Challenge
	accepted  *provider.Accepted

	invite                []byte
	linkUser, linkSession uuid.UUID

	quota    *quota    // of a confirmation, once it is known that one is needed
	asked    string    // the address that it goes to
	lenient  bool      // without it he is let in all the same
	newUser  uuid.UUID // the id of the user who was asked of; Nil: nobody was
	admitted bool      // by the hook before a creation
	unsent   bool      // so none is written: another has just been, or the budget is used up
	notices  bool      // may be written

	// What the transaction came to; set anew by each try.
	open    opening
	code    string
	user    store.User
	level   int             // of a session that goes on in the new one
	methods json.RawMessage // and its amr
	refusal error           // that is committed all the same
	told    int
	sent    []letter
}

// errMoved: what was decided before the lock is not so any more.
var errMoved = errors.New("account: external: somebody else was faster")

// entryTries is how often an entry is decided anew when others change what it depends on.
const entryTries = 5

// run decides, and does it in one transaction. Two callbacks for the same newcomer make one user: the
// second meets a unique index, and decides again.
func (e *entry) run(ctx context.Context) error {
	e.mails = judgeAddresses(e.profile.Emails)
	if e.strict && len(e.mails.all) == 0 && !e.optional {
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "Error getting user email from external provider"}
	}
	for try := 1; ; try++ {
		e.now = e.Accounts.now()
		err := e.attempt(ctx)
		again := errors.Is(err, errMoved) || errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrIdentityTaken) || errors.Is(err, store.ErrUserGone)
		if _, over := errors.AsType[*store.LimitError](err); over && e.lenient {
			e.quota, e.unsent, again = nil, true, true
		}
		if again && try < entryTries {
			continue
		}
		if err != nil {
			return failure("external", e.refusedByQuota(err))
		}
		break
	}
	e.notified(ctx, e.s, e.told)
	if err := e.send(ctx, e.s, e.sent...); err != nil {
		return err
	}
	if e.refusal != nil {
		return e.refusal
	}
	e.crowdOut(ctx, e.s, e.user.ID, e.now)
	return nil
}

func (e *entry) refusedByQuota(err error) error {
	if e.quota == nil {
		return err
	}
	return e.quota.refused(err)
}

// attempt is one try: who it is, before anything is locked, and then the transaction, in which that has
// to come out the same. That somebody is new is known between the two.
func (e *entry) attempt(ctx context.Context) error {
	d := decision{outcome: exists}
	b := e.db.Batch()
	var found []store.Match
	signIn := e.invite == nil && e.linkUser == uuid.Nil
	if signIn {
		e.find(b, &found)
	}
	if e.quota != nil {
		e.quota.look(b)
	}
	if err := b.Send(ctx); err != nil {
		return err
	}
	if signIn {
		d = decide(found, e.mails)
		if err := e.mayBe(d); err != nil {
			return err
		}
	}
	if err := e.maySend(); err != nil && !e.lenient {
		return err
	} else if err != nil {
		e.quota, e.unsent = nil, true
	}
	if signIn && d.outcome == create {
		if err := e.admit(ctx, d); err != nil {
			return err
		}
	}
	e.notices = e.mayNotify(ctx, e.s, e.s.Email.NotifyIdentityLinked && (d.outcome == link || !signIn))
	return e.db.InTx(ctx, func(tx *store.Tx) error {
		e.open, e.code, e.user, e.refusal, e.told, e.sent, e.level, e.methods = opening{}, "", store.User{}, nil, 0, nil, 0, nil
		if e.quota != nil {
			b := tx.Batch()
			e.quota.take(b, e.now, true)
			if err := b.Send(ctx); err != nil {
				return err
			}
		}
		if err := e.spend(ctx, tx); err != nil {
			return err
		}
		switch {
		case e.linkUser != uuid.Nil:
			return e.attach(ctx, tx)
		case e.invite != nil:
			return e.accept(ctx, tx)
		}
		return e.enter(ctx, tx, d)
	})
}

// admit asks the hook whether a newcomer may be created, once for all tries, before the transaction: the user
// as far as it is known by then.
func (e *entry) admit(ctx context.Context, d decision) error {
	if e.admitted || e.s.Hooks.BeforeCreate == nil {
		return nil
	}
	if e.newUser == uuid.Nil {
		e.newUser = uuid.New()
	}
	u := e.s.externalUser(e.s.aud(e.c), e.profile.Provider, d.email, identityData(&e.profile, &e.mails, nil), e.now)
	u.ID = e.newUser
	if err := e.mayCreate(ctx, e.s, e.c, nil, u); err != nil {
		return err
	}
	e.admitted = true
	return nil
}

// maySend judges a confirmation that is to be written.
func (e *entry) maySend() error {
	if e.quota == nil {
		return nil
	}
	if err := e.s.canSendMail("confirmation"); err != nil {
		return err
	}
	return e.quota.judge(e.now)
}

// mayBe are the decisions that nothing is written for.
func (e *entry) mayBe(d decision) error {
	switch {
	case d.outcome == multiple:
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure,
			Msg: "Multiple accounts with the same email address in the same linking domain detected: default"}
	case d.outcome == create && len(e.mails.all) == 0 && !e.optional:
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "Error getting user email from external provider"}
	case d.outcome == create && e.s.DisableSignup:
		return errSignupDisabled
	}
	return nil
}

// find adds the look for whoever this may be.
func (e *entry) find(b *store.Batch, dst *[]store.Match) {
	wanted := e.mails.verified
	if e.mails.best != "" && !e.mails.bestVerified() {
		wanted = append(slices.Clone(wanted), e.mails.best)
	}
	b.Matches(dst, e.names, e.profile.Subject, e.s.aud(e.c), wanted)
}

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

// enter signs somebody in (spec auth-extended 2.5 and 2.6).
func (e *entry) enter(ctx context.Context, tx *store.Tx, d decision) error {
	var old store.User
	if d.outcome != create {
		var err error
		if old, err = tx.LockUser(ctx, d.user); errors.Is(err, store.ErrNotFound) {
			return errMoved
		} else if err != nil {
			return err
		}
	}
	var found []store.Match
	b := tx.Batch()
	e.find(b, &found)
	if d.outcome != create { // those that LockUser returns may be older than the lock
		b.Identities(&old.Identities, d.user)
	}
	if err := b.Send(ctx); err != nil {
		return err
	}
	if decide(found, e.mails) != d {
		return errMoved
	}
	w := &arrival{entry: e, b: tx.Batch(), old: old, patch: store.UserPatch{Now: e.now, ProvidersFromIdentities: true}}
	w.arrive()
	if d.outcome == create {
		w.old = e.s.externalUser(e.s.aud(e.c), e.profile.Provider, d.email, w.data, e.now)
		if e.newUser != uuid.Nil {
			w.old.ID = e.newUser
		}
		w.identity.UserID = w.old.ID
	}
	w.patch.ID = w.old.ID
	if err := e.mayStay(w.old); err != nil {
		return err
	}
	w.settlement = settle(d, w.old, e.mails, rules{e.optional, e.s.Email.Autoconfirm, e.s.External.AllowUnverified})
	if err := w.settled(d); err != nil {
		return err
	}
	w.patch.UserMetadata.Set = w.data
	w.audit(d)
	if d.outcome == create {
		w.insert()
	} else {
		w.change(d)
	}
	return w.finish(ctx)
}

// mayStay refuses a banned user, and so undoes all of it.
func (e *entry) mayStay(u store.User) error {
	switch {
	case !u.DeletedAt.IsZero():
		return errMoved
	case u.BannedUntil.After(e.now):
		return denied(CodeUserBanned, "User is banned")
	}
	return nil
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
	l, err := w.Accounts.confirmation(w.s, w.c, n, nil, w.now)
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
	case w.letter:
		w.note(store.ActionUserConfirmationRequested, "provider", w.profile.Provider)
	default:
		w.note(store.ActionLoginFailed, "reason", CodeProviderEmailUnverified, "provider", w.profile.Provider)
	}
}

func (w *arrival) note(action store.Action, pairs ...string) {
	w.audits = append(w.audits, store.Audit{At: w.now, Action: action, Actor: w.old.ID, IP: w.c.IP, Traits: traits(pairs...)})
}

// insert adds a new user as he is from now on.
func (w *arrival) insert() {
	u := w.old
	u.UserMetadata, u.EmailConfirmedAt = w.data, w.confirmedAt(w.now)
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
// password, phone, metadata, other identities; sessions, tokens, flows and factors go with it (spec auth-extended
// 2.6, 11.1).
func (w *arrival) clear() {
	p := &w.patch
	p.PasswordHash, p.Phone, p.PhoneConfirmedAt = ptr(""), ptr(""), &time.Time{}
	p.NewEmail, p.NewPhone, p.CurrentEmailProven, p.NewEmailProven = ptr(""), ptr(""), ptr(false), ptr(false)
	p.UserMetadata.Replace = true
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
		e.open = e.s.open(e.c, id, methodOAuth, e.now)
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

// accept is an invitation that is accepted by signing in with a provider (spec auth-extended 2.7): one
// of the addresses that it has verified must be the invited one.
func (e *entry) accept(ctx context.Context, tx *store.Tx) error {
	t, err := tx.RedeemLink(ctx, e.invite, []store.Kind{store.KindInvite}, e.now)
	if errors.Is(err, store.ErrNotFound) {
		return missing(CodeInviteNotFound, "Invite not found")
	}
	if err != nil {
		return err
	}
	old, err := tx.LockUser(ctx, t.User)
	if err != nil {
		return err
	}
	var found []store.Match
	b := tx.Batch()
	b.Matches(&found, e.names, e.profile.Subject, old.Aud, nil)
	b.Identities(&old.Identities, old.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if !e.mails.has(old.Email) {
		return notValid("Invited email does not match emails from external provider")
	}
	if len(found) > 0 && found[0].User != old.ID {
		return errLinkedElsewhere
	}
	if err := e.mayStay(old); err != nil {
		return err
	}
	e.mails.best = old.Email
	w := &arrival{entry: e, b: tx.Batch(), old: old, patch: store.UserPatch{ID: old.ID, Now: e.now, ProvidersFromIdentities: true},
		settlement: settlement{confirm: true, claim: old.EmailConfirmedAt.IsZero()}}
	w.arrive()
	w.note(store.ActionInviteAccepted, "provider", e.profile.Provider)
	if err := w.settled(decision{outcome: link, user: old.ID}); err != nil {
		return err
	}
	w.patch.UserMetadata.Set = w.data
	w.change(decision{outcome: link, user: old.ID})
	return w.finish(ctx)
}

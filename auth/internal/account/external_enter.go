package account

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// methodOAuth is the amr method of a session that a provider vouches for.
const methodOAuth = "oauth"

// entry is one arrival of somebody whom a provider vouches for: a sign-in, an accepted invitation, or an
// identity to be linked.
type entry struct {
	f       *flow
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
	linkAAL               int             // of the access token that asked
	exchange              *exchangeCodeOp // of the code that links; nil: it is linked at once

	quota    *quota    // of a confirmation, once it is known that one is needed
	asked    string    // the address that it goes to
	lenient  bool      // without it he is let in all the same
	newUser  uuid.UUID // the id of the user who was asked of; Nil: nobody was
	admitted bool      // by the hook before a creation
	unsent   bool      // so none is written: another has just been, or the budget is used up
	notify   bool      // may be written

	// What the transaction came to; set anew by each try.
	open     sessionDraft
	code     string
	user     store.User
	level    int             // of a session that goes on in the new one
	methods  json.RawMessage // and its amr
	refusal  error           // that is committed all the same
	notified int
	sent     []outgoing
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
		e.f.tick()
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
	e.f.countNotifications(ctx, e.notified)
	if err := e.f.send(ctx, e.sent...); err != nil {
		return err
	}
	if e.refusal != nil {
		return e.refusal
	}
	enforceSessionLimit(ctx, e.f, e.user.ID)
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
	b := e.f.batch()
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
	if signIn && d.outcome == create && !settle(d, store.User{Email: d.email}, e.mails, e.rules()).shut() {
		if err := e.admit(ctx, d); err != nil {
			return err
		}
	}
	e.notify = canNotify(ctx, e.f, e.f.settings.Email.NotifyIdentityLinked && (d.outcome == link || !signIn))
	return e.f.inTx(ctx, func(tx *store.Tx) error {
		e.open, e.code, e.user, e.refusal, e.notified, e.sent, e.level, e.methods = sessionDraft{}, "", store.User{}, nil, 0, nil, 0, nil
		if e.quota != nil {
			b := tx.Batch()
			e.quota.take(b, e.f.now)
			if err := b.Send(ctx); err != nil {
				return err
			}
		}
		if err := e.spend(ctx, tx); err != nil {
			return err
		}
		switch {
		case e.exchange != nil:
			return e.attachByCode(ctx, tx)
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
	if e.admitted || e.f.settings.Hooks.BeforeCreate == nil {
		return nil
	}
	if e.newUser == uuid.Nil {
		e.newUser = uuid.New()
	}
	u := e.f.settings.externalUser(e.f.aud(), e.profile.Provider, d.email, identityData(&e.profile, &e.mails, nil), e.f.now)
	u.ID = e.newUser
	if err := mayCreate(ctx, e.f, nil, u); err != nil {
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
	if err := e.f.settings.canSendMail("confirmation"); err != nil {
		return err
	}
	return e.quota.judge(e.f.now)
}

// mayBe are the decisions that nothing is written for.
func (e *entry) mayBe(d decision) error {
	switch {
	case d.outcome == multiple:
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure,
			Msg: "Multiple accounts with the same email address in the same linking domain detected: default"}
	case d.outcome == create && len(e.mails.all) == 0 && !e.optional:
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "Error getting user email from external provider"}
	case d.outcome == create && e.f.settings.DisableSignup:
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
	b.Matches(dst, e.names, e.profile.Subject, e.f.aud(), wanted)
}

// enter signs somebody in.
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
	w := &arrival{f: e.f, op: e, b: tx.Batch(), old: old, patch: store.UserPatch{Now: e.f.now, ProvidersFromIdentities: true}}
	w.arrive()
	if d.outcome == create {
		w.old = e.f.settings.externalUser(e.f.aud(), e.profile.Provider, d.email, w.data, e.f.now)
		if e.newUser != uuid.Nil {
			w.old.ID = e.newUser
		}
		w.identity.UserID = w.old.ID
	}
	w.patch.ID = w.old.ID
	if err := e.mayStay(w.old); err != nil {
		return err
	}
	w.settlement = settle(d, w.old, e.mails, e.rules())
	if err := w.settled(d); err != nil {
		return err
	}
	if w.settlement.shut() {
		return w.turnAway(ctx, d)
	}
	w.patch.UserMetadata.Set = w.data
	w.audit(d)
	w.evict(d.abandoned)
	if d.outcome == create {
		w.insert()
	} else {
		w.change(d)
	}
	return w.finish(ctx)
}

func (e *entry) rules() rules {
	return rules{e.optional, e.f.settings.Email.Autoconfirm, e.f.settings.External.AllowUnverified}
}

// mayStay refuses a banned user, and so undoes all of it.
func (e *entry) mayStay(u store.User) error {
	switch {
	case !u.DeletedAt.IsZero():
		return errMoved
	case u.BannedUntil.After(e.f.now):
		return denied(CodeUserBanned, "User is banned")
	}
	return nil
}

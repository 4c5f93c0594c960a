package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// methodOAuth is the amr method of a session that was opened by an external provider.
const methodOAuth = "oauth"

// oauthOp is one use of an identity that an external provider has proven: a sign-in, an accepted invitation, or a
// linking.
type oauthOp struct {
	f flow.Flow
	Arrival
	names    []string // names under which the provider's identities may be stored, the current name first
	emails   providerEmails
	exchange *exchangeCodeOp // the exchange of the PKCE code that links the identity; nil: linked at once
	created  flow.Creation

	quota        *flow.Quota // quota of a confirmation mail, set once the mail is known to be needed
	confirmTo    string      // recipient of the confirmation mail
	mailOptional bool        // the sign-in succeeds even without the mail
	mailSkipped  bool        // no mail is written: one has just been sent, or the budget is used up
	notify       bool        // the budget allows notifications

	// These fields are the results of the transaction; each try of the transaction sets them again.
	open    flow.SessionDraft
	code    string
	user    store.User
	level   int             // assurance level of the session that the new session continues
	methods json.RawMessage // amr of the session that the new session continues
}

// errRaced is returned if the decision is made again once the user is locked, and differs from the decision before the
// lock.
var errRaced = errors.New("account: external: somebody else was faster")

// oauthTries is how often the decision is made, if concurrent requests change the data that it depends on.
const oauthTries = 5

// run decides which account the identity leads to, and carries out the decision in one transaction. Two callbacks for
// the same new user create one user: the second violates a unique index and decides again.
func (op *oauthOp) run(ctx context.Context) error {
	op.emails = judgeEmails(op.Profile.Emails)
	if len(op.emails.all) == 0 && (op.Profile.BadEmail || !op.Native && !op.Optional) {
		return op.noEmail()
	}
	for try := 1; ; try++ {
		op.f.Tick()
		err := op.attempt(ctx)
		again := errors.Is(err, errRaced) || errors.Is(err, store.ErrEmailTaken) ||
			errors.Is(err, store.ErrIdentityTaken) || errors.Is(err, store.ErrUserGone)
		if _, over := errors.AsType[*store.LimitError](err); over && op.mailOptional {
			op.quota, op.mailSkipped, again = nil, true, true
		}
		if again && try < oauthTries {
			continue
		}
		if err != nil {
			return refusal.Failure("external", op.refusedByQuota(err))
		}
		break
	}
	flow.EnforceSessionLimit(ctx, &op.f, op.user.ID)
	return nil
}

func (op *oauthOp) refusedByQuota(err error) error {
	if op.quota == nil {
		return err
	}
	return op.quota.RefusalOf(err)
}

// attempt makes one try: it decides before anything is locked, and again in the transaction, where the decision must be
// the same. The hook for a new user is called before the transaction.
func (op *oauthOp) attempt(ctx context.Context) error {
	d := accountDecision{resolution: userKnown}
	b := op.f.Batch()
	var found []store.Match
	signIn := op.Invite == nil && op.LinkUser == uuid.Nil
	if signIn {
		op.find(b, &found)
	}
	if op.quota != nil {
		op.quota.Look(b)
	}
	if err := b.Send(ctx); err != nil {
		return err
	}
	if signIn {
		d = resolveAccount(found, op.emails)
		if err := op.checkDecision(d); err != nil {
			return err
		}
	}
	if err := op.checkSending(); err != nil && !op.mailOptional {
		return err
	} else if err != nil {
		op.quota, op.mailSkipped = nil, true
	}
	if signIn && d.resolution == userCreated &&
		!reconcileEmail(d, store.User{Email: d.email}, op.emails, op.rules()).refusesOutright() {
		if err := op.askCreation(ctx, d); err != nil {
			return err
		}
	}
	op.notify = flow.CanNotify(ctx, &op.f, op.f.Settings.Email.Notify.IdentityLinked &&
		(d.resolution == userLinked || !signIn))
	return op.f.Commit(ctx, func(tx *flow.Tx) error {
		op.open, op.code, op.user, op.level, op.methods = flow.SessionDraft{}, "", store.User{}, 0, nil
		if op.quota != nil {
			if err := tx.Run(ctx, func(b *flow.Batch) { op.quota.Take(b, op.f.Now) }); err != nil {
				return err
			}
		}
		if err := op.spendIDToken(ctx, tx); err != nil {
			return err
		}
		switch {
		case op.exchange != nil:
			return op.linkByCode(ctx, tx)
		case op.LinkUser != uuid.Nil:
			return op.linkIdentity(ctx, tx)
		case op.Invite != nil:
			return op.acceptInvite(ctx, tx)
		}
		return op.upsertUser(ctx, tx, d)
	})
}

// askCreation asks the hook BeforeCreate whether a user may be created. It runs before the transaction, so that no
// connection is held during the call. The hook gets what is known of the user before the transaction.
func (op *oauthOp) askCreation(ctx context.Context, d accountDecision) error {
	if op.f.Settings.Hooks.BeforeCreate == nil {
		return nil
	}
	u := op.externalUser(d.email, identityData(&op.Profile, &op.emails, nil))
	return op.created.CheckCreation(ctx, &op.f, u)
}

// checkSending checks whether a confirmation mail may be sent.
func (op *oauthOp) checkSending() error {
	if op.quota == nil {
		return nil
	}
	if err := op.f.Settings.CheckMailSendable("confirmation"); err != nil {
		return err
	}
	return op.quota.Check(op.f.Now)
}

// checkDecision refuses decisions that no transaction can carry out.
func (op *oauthOp) checkDecision(d accountDecision) error {
	switch {
	case d.resolution == userAmbiguous:
		return &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
			Msg: "Multiple accounts with the same email address in the same linking domain detected: default"}
	case d.resolution == userCreated && len(op.emails.all) == 0 && !op.Optional:
		return op.noEmail()
	case d.resolution == userCreated && op.f.Settings.DisableSignup:
		return flow.ErrSignupDisabled
	}
	return nil
}

// noEmail returns the refusal of a profile without a valid e-mail address.
func (op *oauthOp) noEmail() *refusal.Refusal {
	if op.Profile.BadEmail {
		return refusal.Unprocessable(refusal.CodeValidationFailed,
			op.Profile.Provider+" returned an address that is not valid")
	}
	return &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
		Msg: "Error getting user email from external provider"}
}

// find adds the statement that reads the users to whom the identity may lead.
func (op *oauthOp) find(b *flow.Batch, dst *[]store.Match) {
	wanted := op.emails.verified
	if op.emails.best != "" && !op.emails.bestVerified() {
		wanted = append(slices.Clone(wanted), op.emails.best)
	}
	b.Matches(dst, store.MatchesFor{Providers: op.names, Subject: op.Profile.Subject, Aud: op.f.Aud(),
		Addresses: wanted, Unproven: op.f.Settings.ClaimUnproven})
}

// lockDecided locks the user of a decision, if there is one, and decides again. It returns errRaced if the decision
// differs.
func (op *oauthOp) lockDecided(ctx context.Context, tx *flow.Tx, d accountDecision) (old store.User, err error) {
	id := d.user
	if d.yields != uuid.Nil {
		id = d.yields
	}
	if id != uuid.Nil {
		if old, err = tx.LockUser(ctx, id); errors.Is(err, store.ErrNotFound) {
			return old, errRaced
		} else if err != nil {
			return old, err
		}
	}
	var found []store.Match
	b := tx.Batch()
	op.find(b, &found)
	if id != uuid.Nil { // LockUser may have read the identities before it got the lock
		b.Identities(&old.Identities, id)
	}
	if err := b.Send(ctx); err != nil {
		return old, err
	}
	if resolveAccount(found, op.emails) != d {
		return old, errRaced
	}
	return old, nil
}

// upsertUser signs the user in, and creates or updates the account as decided.
func (op *oauthOp) upsertUser(ctx context.Context, tx *flow.Tx, d accountDecision) error {
	old, err := op.lockDecided(ctx, tx, d)
	if err != nil {
		return err
	}
	w := &oauthTx{f: &op.f, op: op, b: tx.Batch(), old: old,
		patch: store.UserPatch{Now: op.f.Now, ProvidersFromIdentities: true}}
	w.findIdentity()
	if d.resolution == userCreated {
		w.old = op.externalUser(d.email, w.data)
		w.identity.UserID = w.old.ID
	}
	w.patch.ID = w.old.ID
	if err := op.checkStillAllowed(w.old); err != nil {
		return err
	}
	w.email = reconcileEmail(d, w.old, op.emails, op.rules())
	if err := w.reconcile(); err != nil {
		return err
	}
	if w.email.refusesOutright() {
		return w.recordRefusal(ctx, d)
	}
	w.patch.UserMetadata.Set = w.data
	w.audit(d)
	w.deleteAbandoned(d.abandoned)
	if d.yields != uuid.Nil {
		w.note(flow.RemoveAddress(w.b, old, "email", op.f.Now), "user_id", old.ID.String(), "reason", "address_proven")
	}
	if d.resolution == userCreated {
		w.insertUser()
	} else {
		w.updateUser()
	}
	return w.finish(ctx)
}

func (op *oauthOp) rules() emailRules {
	return emailRules{op.Optional, op.f.Settings.Email.Autoconfirm, op.f.Settings.External.AllowUnverified,
		op.f.Settings.ClaimUnproven}
}

// checkStillAllowed returns the refusal of a deleted or banned user, with which the transaction is rolled back.
func (op *oauthOp) checkStillAllowed(u store.User) error {
	switch {
	case !u.DeletedAt.IsZero():
		return errRaced
	case u.BannedUntil.After(op.f.Now):
		return refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	return nil
}

// acceptInvite accepts an invitation by a sign-in with an external provider, which must have verified the invited
// address.
func (op *oauthOp) acceptInvite(ctx context.Context, tx *flow.Tx) error {
	t, err := tx.RedeemLink(ctx, op.Invite, []store.Kind{store.KindInvite}, op.f.Now)
	if errors.Is(err, store.ErrNotFound) {
		return refusal.Missing(refusal.CodeInviteNotFound, "Invite not found")
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
	b.Matches(&found, store.MatchesFor{Providers: op.names, Subject: op.Profile.Subject, Aud: old.Aud})
	b.Identities(&old.Identities, old.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if !op.emails.has(old.Email) {
		return refusal.NotValid("Invited email does not match emails from external provider")
	}
	if len(found) > 0 && found[0].How == store.BySubject && found[0].User != old.ID {
		return errLinkedElsewhere
	}
	if err := op.checkStillAllowed(old); err != nil {
		return err
	}
	op.emails.best = old.Email
	w := &oauthTx{f: &op.f, op: op, b: tx.Batch(), old: old,
		patch: store.UserPatch{ID: old.ID, Now: op.f.Now, ProvidersFromIdentities: true},
		email: emailOutcome{confirm: true, claim: old.EmailConfirmedAt.IsZero()}}
	w.findIdentity()
	w.note(store.ActionInviteAccepted, "provider", op.Profile.Provider)
	if err := w.reconcile(); err != nil {
		return err
	}
	w.patch.UserMetadata.Set = w.data
	w.deleteAbandoned(resolveAccount(found, op.emails).abandoned)
	w.updateUser()
	return w.finish(ctx)
}

// externalUser returns a new, unconfirmed user for a provider's profile. email is "" if the user gets no address.
func (op *oauthOp) externalUser(email string, data json.RawMessage) store.User {
	f, provider := &op.f, op.Profile.Provider
	return store.User{
		ID: op.created.NewID(), Aud: f.Aud(), Role: f.Settings.Role, Email: email, CreatedAt: f.Now, UpdatedAt: f.Now,
		UserMetadata: data,
		AppMetadata:  flow.MustJSON(map[string]any{"provider": provider, "providers": []string{provider}}),
	}
}

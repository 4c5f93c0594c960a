package account

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// updateUserOp is the state of one call of UpdateUser.
type updateUserOp struct {
	f         flow.Flow
	principal flow.Principal
	p         flow.UserUpdate

	email, phone string // requested addresses; "" for no change
	data         store.MetadataPatch

	// These fields are the results of hashing and comparing the given passwords, which is done before the transaction.
	hash string // hash of the new password; "" for no change
	// against is the stored hash that the passwords were compared with. If the user has another hash by the time of the
	// transaction, the comparison is repeated.
	against string
	// same is set if the new password is the old one, current if the current password was given and is right.
	same, current bool

	guesses      flow.Guesses // tries at the current password
	tries        store.Tried
	nonceTry     store.Limit // try that was taken for the nonce; given back if the nonce is right
	proven       string      // address that the nonce was sent to
	hookNotified bool        // the hook of passwords was called for the right current password
	mails        *flow.Quota
	texts        *flow.Quota
	notify       bool // the budget allows notifications
}

// UpdateUser changes the user's own password, metadata, e-mail address or phone number, after the checks of
// docs/api.md#checks-and-their-order. A new address takes effect when it is proven. All changes and mails are one
// transaction; the passwords are hashed before it.
func (a *Accounts) UpdateUser(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	p flow.UserUpdate) (store.User, error) {
	f := a.core.Begin(req)
	op := updateUserOp{f: *f, principal: principal, p: p}
	op.guesses = flow.PasswordGuesses(f, principal.User.Aud, cmp.Or(principal.User.Email, principal.User.Phone))
	if err := op.validate(); err != nil {
		return store.User{}, err
	}
	if err := op.requireAAL2(principal.User, principal.Session); err != nil {
		return store.User{}, err
	}
	if err := op.look(ctx); err != nil {
		return store.User{}, err
	}
	out, err := op.commit(ctx)
	if errors.Is(err, errChangedMeanwhile) { // most likely a second click on the same button
		out, err = op.commit(ctx)
	}
	switch {
	case errors.Is(err, errChangedMeanwhile):
		return store.User{}, refusal.Unavailable(err, time.Second)
	case err != nil:
		return store.User{}, refusal.Failure("update user", addressError(err))
	}
	return out, nil
}

// commit hashes the passwords, then writes in one transaction.
func (op *updateUserOp) commit(ctx context.Context) (out store.User, err error) {
	if err := op.hashPasswords(ctx); err != nil {
		return out, err
	}
	op.notify = flow.CanNotify(ctx, &op.f, op.hash != "" && op.f.Settings.Email.Notify.PasswordChanged || op.phone != "" &&
		op.f.Settings.Email.Notify.PhoneChanged)
	err = op.f.Commit(ctx, func(tx *flow.Tx) (err error) {
		out, err = op.write(ctx, tx)
		return err
	})
	if errors.Is(err, errCurrentInvalid) {
		err = op.wrongCurrent(ctx)
	}
	return out, err
}

var errCurrentInvalid = refusal.Invalid(refusal.CodeCurrentPasswordInvalid,
	"Current password required when setting new password.")

// wrongCurrent counts a wrong current password as a sign-in counts a wrong password, so that the holder of a session
// gets no more guesses.
func (op *updateUserOp) wrongCurrent(ctx context.Context) error {
	if err := op.checkGuesses(ctx); err != nil {
		return err
	}
	return op.guesses.CountWrong(ctx, &op.f, op.principal.User.ID, "current_password", errCurrentInvalid)
}

// checkGuesses refuses the request if no try at the current password is left. It runs outside of the transaction.
func (op *updateUserOp) checkGuesses(ctx context.Context) error {
	if err := op.f.Run(ctx, op.addTried); err != nil {
		return refusal.Failure("tries of a password", err)
	}
	return op.guesses.Check(&op.f, op.tries)
}

// addTried adds the statement that reads how many tries are left, if a current password was given and is needed.
func (op *updateUserOp) addTried(b *flow.Batch) {
	if op.p.CurrentPassword != nil && op.needsCurrent() {
		b.Tried(&op.tries, op.principal.User.ID, op.guesses.Account, op.guesses.Place)
	}
}

// checkCurrent compares the current password with the stored hash, and calls the hook of passwords.
func (op *updateUserOp) checkCurrent(ctx context.Context) (err error) {
	if op.current, _, err = op.f.Core.Passwords.Check(ctx, op.against, *op.p.CurrentPassword); err != nil {
		return refusal.Failure("check password", err)
	}
	if !op.current || !op.hookNotified {
		op.hookNotified = op.current
		if verdict := flow.ReportPassword(ctx, &op.f, op.principal.User.ID, op.current); verdict != nil {
			if err := op.checkGuesses(ctx); err != nil {
				return err
			}
			return op.guesses.RecordRejected(ctx, &op.f, op.principal.User.ID, op.current, verdict)
		}
	}
	if !op.current && !op.needsNonce() { // if a nonce is needed, it is checked first
		return op.wrongCurrent(ctx)
	}
	return nil
}

// errChangedMeanwhile is returned if the user has another password hash than the one that the password was compared
// with. In UpdateUser, op.principal has the new hash by then, so that the comparison can be repeated.
var errChangedMeanwhile = errors.New("account: the password was changed meanwhile")

// endPauses ends the pauses between mails after a new password was set. It runs after the transaction. Within it, the
// rows of the limits would be locked after the user's row, while other flows lock them first, so two transactions could
// deadlock. A failure is only logged, since the pauses end by themselves.
func (op *updateUserOp) endPauses(ctx context.Context, pauses [][]byte) {
	if err := op.f.Run(ctx, func(b *flow.Batch) { b.ForgetLimits(pauses...) }); err != nil {
		op.f.Core.Log.Warn("the pauses between mails were not ended", "error", err)
	}
}

// validate makes the checks that need only the request and the principal.
func (op *updateUserOp) validate() (err error) {
	p, old := &op.p, &op.principal.User
	if p.Email != "" {
		if p.Email, err = flow.ParseEmail(p.Email); err != nil {
			return err
		}
	}
	if p.Phone != "" {
		if p.Phone, err = flow.ParsePhone(p.Phone); err != nil {
			return err
		}
		if err := op.f.Settings.Phone.CheckChannel(p.Channel); err != nil {
			return err
		}
	}
	if err := p.Challenge.Check(); err != nil {
		return err
	}
	if p.Password != nil {
		if err := op.f.Settings.CheckPassword(*p.Password); err != nil {
			return err
		}
		if *p.Password == "" { // refused even without a policy
			return refusal.Unprocessable(refusal.CodeWeakPassword, "Password should not be empty.")
		}
	}
	if len(p.AppMetadata) > 0 && string(p.AppMetadata) != "null" {
		return refusal.Denied(refusal.CodeNotAdmin, "Updating app_metadata requires admin privileges")
	}
	if p.Password != nil && old.IsAnonymous && p.Email == "" && p.Phone == "" {
		return refusal.Unprocessable(refusal.CodeValidationFailed,
			"Updating password of an anonymous user without an email or phone is not allowed")
	}
	if op.data, err = flow.ParsePatch(flow.UserMetadata(p.Data)); err != nil {
		return err
	}
	if p.Email != old.Email {
		op.email = p.Email
	}
	if p.Phone != old.Phone {
		op.phone = p.Phone
	}
	return nil
}

// emailAtOnce reports whether an anonymous user's first address is confirmed without a mail, because autoconfirm is
// set.
func (op *updateUserOp) emailAtOnce() bool {
	return op.principal.User.IsAnonymous && op.f.Settings.Email.Autoconfirm
}

// look reads which accounts have the requested addresses, and checks the limits of the messages. Since a user could
// request ever new addresses, there is also a pause for the current e-mail address or, for users without one and for
// phone numbers, for the user.
func (op *updateUserOp) look(ctx context.Context) error {
	if op.email == "" && op.phone == "" {
		return nil
	}
	aud, me := op.principal.User.Aud, op.principal.User.ID
	var byEmail, byPhone store.User
	b := op.f.Batch()
	if op.email != "" {
		b.Account(&byEmail, aud, op.email)
		if !op.emailAtOnce() {
			about := []string{op.email}
			if op.principal.User.Email != "" {
				about = append(about, op.principal.User.Email)
			}
			op.mails = flow.BoundUser(&op.f, flow.MailQuota(&op.f, "email_change", op.f.Settings.Email.Interval, aud, about...),
				&op.principal)
			if len(about) == 1 {
				op.mails.Pause(&op.f, op.f.Settings.Email.Interval, "email_change", me.String())
			}
			op.mails.Apart(&op.f, aud, op.principal.User.Email).Look(b)
		}
	}
	if op.phone != "" {
		b.UserByPhone(&byPhone, aud, op.phone)
		if !op.f.Settings.Phone.Autoconfirm {
			op.texts = flow.BoundUser(&op.f, flow.SMSQuota(&op.f, aud, op.phone), &op.principal)
			op.texts.Pause(&op.f, op.f.Settings.Phone.Interval, "phone_change", me.String())
			op.texts.Look(b)
		}
	}
	if err := b.Send(ctx); err != nil {
		return refusal.Failure("look up", err)
	}
	// An account that never proved the address loses it to a user who proves it. An address that is set at once is not
	// proven.
	s := op.f.Settings
	if byEmail.ID != uuid.Nil && byEmail.ID != me && (op.mails == nil || !yields(s, byEmail, "email", op.email)) {
		return flow.ErrEmailExists
	}
	if byPhone.ID != uuid.Nil && byPhone.ID != me && (op.texts == nil || !yields(s, byPhone, "phone", op.phone)) {
		return errPhoneExists
	}
	return nil
}

// checkSending returns an error if a mail or SMS cannot be sent now. The error is returned only if all other checks
// pass: it may be temporary, and a client should first learn of the reasons that repeating the request does not remove.
func (op *updateUserOp) checkSending() error {
	if op.mails != nil {
		if err := op.f.Settings.CheckMailSendable("email change"); err != nil {
			return err
		}
		if err := op.mails.Check(op.f.Now); err != nil {
			return err
		}
	}
	if op.texts != nil {
		if err := flow.CheckSMSSendable(&op.f, "phone_change", op.phone); err != nil {
			return err
		}
		return op.texts.Check(op.f.Now)
	}
	return nil
}

// hashPasswords compares and hashes the given passwords, outside of the transaction.
func (op *updateUserOp) hashPasswords(ctx context.Context) (err error) {
	if op.p.Password == nil {
		return nil
	}
	if op.needsNonce() && op.p.Nonce == "" {
		return refusal.Invalid(refusal.CodeReauthenticationNeeded, "Password update requires reauthentication")
	}
	// Start over: this may be the second comparison.
	op.against, op.same, op.current = op.principal.User.PasswordHash, false, false
	if op.p.CurrentPassword != nil && op.needsCurrent() {
		if err := op.checkCurrent(ctx); err != nil {
			return err
		}
	}
	if op.against != "" {
		if op.same, _, err = op.f.Core.Passwords.Check(ctx, op.against, *op.p.Password); err != nil {
			return refusal.Failure("check password", err)
		}
	}
	if op.hash, err = op.f.Core.Passwords.Hash(ctx, *op.p.Password); err != nil {
		return refusal.Failure("hash password", err)
	}
	return nil
}

// needsNonce reports whether a new password needs a nonce, which proves access to the user's address again. Sessions
// younger than NonceMaxAge need none.
func (op *updateUserOp) needsNonce() bool {
	v := op.principal.Session
	young := op.f.Settings.Passwords.NonceMaxAge > 0 && v.ID != uuid.Nil &&
		op.f.Now.Sub(v.CreatedAt) < op.f.Settings.Passwords.NonceMaxAge
	return op.f.Settings.Passwords.RequireNonce && !young
}

// needsCurrent reports whether a new password needs the current one. It does not if the user has no password, or if the
// session was opened by a mail or SMS to an address that the user had before. A session that a change of address opened
// is no such exception: it proves no more than the session that requested the change.
func (op *updateUserOp) needsCurrent() bool {
	if !op.f.Settings.Passwords.RequireCurrent || op.principal.User.PasswordHash == "" {
		return false
	}
	return !slices.ContainsFunc(amr(op.principal.Session), func(m token.AMR) bool {
		return m.Method == flow.MethodOTP && m.Provider == "" || m.Method == "magiclink" || m.Method == "recovery"
	})
}

var errNonce = refusal.Unprocessable(refusal.CodeReauthenticationNotValid, "Nonce has expired or is invalid")

// checkPasswordChange makes the checks of a new password that need the user as locked: first the nonce, then the
// current password.
func (op *updateUserOp) checkPasswordChange(ctx context.Context, tx *flow.Tx, now store.User) error {
	if op.needsNonce() {
		var macs [][]byte
		for _, who := range []string{now.Email, now.Phone} {
			if who != "" {
				macs = append(macs, flow.DigitMACs(&op.f, []store.Kind{store.KindReauthentication}, who, op.p.Nonce)...)
			}
		}
		n := store.Nonce{User: now.ID, MACs: macs, Now: op.f.Now, MaxMisses: flow.MaxMisses}
		// These tries have a bucket of their own, not the bucket of /verify: here a try is taken after the user is
		// locked, in /verify before. With one bucket for both, two requests could deadlock.
		n.Tries, n.Place = flow.CodeTries(&op.f, "nonces", now.Aud, op.guesses.Address)
		nonce, try, err := tx.RedeemNonce(ctx, n)
		op.nonceTry, op.proven, err = try, nonce.Address, flow.TooManyCodes(err)
		if errors.Is(err, store.ErrNotFound) {
			return errNonce
		}
		if err != nil {
			return err
		}
	}
	switch {
	case subtle.ConstantTimeCompare([]byte(now.PasswordHash), []byte(op.against)) == 0:
		op.principal.User.PasswordHash = now.PasswordHash
		return errChangedMeanwhile
	case op.needsCurrent() && op.p.CurrentPassword == nil:
		return refusal.Invalid(refusal.CodeCurrentPasswordRequired, "Current password required when setting new password.")
	case op.needsCurrent() && !op.current:
		return errCurrentInvalid
	case op.needsCurrent():
		if err := op.guesses.Check(&op.f, op.tries); err != nil {
			return err
		}
	}
	return nil
}

var errSamePassword = refusal.Unprocessable(refusal.CodeSamePassword,
	"New password should be different from the old password.")

// write runs within the transaction: it locks the user, makes the last checks and writes all changes.
func (op *updateUserOp) write(ctx context.Context, tx *flow.Tx) (out store.User, err error) {
	sendable := op.checkSending()
	if sendable == nil {
		if err := op.takeQuotas(ctx, tx); err != nil {
			return out, err
		}
	}
	// A new password ends the other sessions. The lock keeps concurrent requests of these sessions from changing the
	// user after that.
	old, session, err := flow.LockPrincipal(ctx, &op.f, tx, op.principal, op.addTried)
	if err != nil {
		return out, err
	}
	if err := op.requireAAL2(old, session); err != nil {
		return out, err
	}
	if op.email != "" && op.mails == nil && !old.IsAnonymous {
		if old.Email != op.email {
			// The user is no longer anonymous, so the new address now needs a proof. If the request is repeated, it
			// sends the mail for the proof.
			return out, refusal.Unavailable(errors.New("account: the user is no longer anonymous"), time.Second)
		}
		op.email = "" // another request has set the address already
	}
	if err := op.f.Settings.CheckGrowth(old, op.data, store.MetadataPatch{}); err != nil {
		return out, err
	}
	if op.p.Password != nil {
		if err := op.checkPasswordChange(ctx, tx, old); err != nil {
			if err == error(errNonce) {
				tx.Refuse(err)
				// The transaction commits, so that the wrong nonce is counted.
				return out, op.recordNonce(ctx, tx, sendable == nil)
			}
			return out, err
		}
	}
	if sendable != nil {
		return out, sendable
	}
	// This check comes last. A password that passes it is set, so passwords cannot be tested without changing them.
	if op.same {
		return out, errSamePassword
	}
	ch := updateUserTx{f: &op.f, op: op, b: tx.Batch(), old: old,
		patch: store.UserPatch{ID: old.ID, Now: op.f.Now, UserMetadata: op.data}}
	if op.nonceTry.Key != nil {
		ch.b.Take(op.nonceTry, -1, op.f.Now)
	}
	flow.NoteProof(&ch.patch, old, op.proven)
	if op.hash != "" && ch.passwordWaits() {
		ch.pending = op.hash
	} else if op.hash != "" {
		ch.password()
	}
	if op.email != "" {
		if err := ch.email(); err != nil {
			return out, err
		}
	}
	if op.phone != "" {
		if err := ch.phone(); err != nil {
			return out, err
		}
	}
	ch.fill()
	ch.b.User(&out, old.ID)
	return out, ch.b.Send(ctx)
}

// requireAAL2 refuses a change of password or address in a session at aal1 if the user has a second factor. Otherwise
// the first factor alone would suffice to take over the account.
func (op *updateUserOp) requireAAL2(now store.User, v store.Session) error {
	if (op.p.Password != nil || op.email != "" || op.phone != "") && flow.IsBelowAAL2(now, v) {
		return &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeInsufficientAAL,
			Msg: "AAL2 session is required to update email or password when MFA is enabled."}
	}
	return nil
}

// recordNonce writes an audit row about a wrong nonce, at most once a minute for each user. If taken is set, it gives
// back what takeQuotas took, since the transaction commits without sending a message. It cannot deadlock, since
// takeQuotas has locked the rows of the limits.
func (op *updateUserOp) recordNonce(ctx context.Context, tx *flow.Tx, taken bool) error {
	b := tx.Batch()
	for _, q := range []*flow.Quota{op.mails, op.texts} {
		if q != nil && taken {
			q.GiveBack(b, op.f.Now)
		}
	}
	user := op.principal.User.ID
	op.f.AuditSeldom(b, "nonce note", user.String(),
		op.f.Audit(store.ActionVerificationFailed, user, op.principal.Session.ID, "type", "reauthentication"))
	return b.Send(ctx)
}

// takeQuotas takes from the limits of the messages before the user is locked. All flows take from limits first, since
// otherwise two transactions could deadlock.
func (op *updateUserOp) takeQuotas(ctx context.Context, tx *flow.Tx) error {
	b := tx.Batch()
	for _, q := range []*flow.Quota{op.mails, op.texts} {
		if q != nil {
			q.Take(b, op.f.Now)
		}
	}
	err := b.Send(ctx)
	for _, q := range []*flow.Quota{op.mails, op.texts} {
		if q != nil {
			err = q.RefusalOf(err)
		}
	}
	return err
}

// notify adds a mail of this kind that notifies the user, if the operator has switched it on, the budget allows it and
// the user has an e-mail address.
func (ch *updateUserTx) notify(on bool, kind mail.Kind, v mail.Vars) {
	if on && ch.op.notify && ch.old.Email != "" {
		v.Email, v.Data = ch.old.Email, ch.old.UserMetadata
		ch.notifications = append(ch.notifications, flow.Notification(ch.f, kind, ch.old.Email, v))
	}
}

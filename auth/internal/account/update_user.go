package account

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// updateUserOp is one call of UpdateUser.
type updateUserOp struct {
	f         flow
	principal Principal
	p         UserUpdate

	email, phone string // wanted, and different from the present ones; "" for no change
	data         store.MetadataPatch

	// What the hash workers found for the given passwords, before the transaction.
	hash string // of the new password; "" for no change
	// against is the hash that was compared: if the user has another by now, the comparison is made again.
	against string
	// same: the new password is the old one. current: the current one was given, and right.
	same, current bool

	guesses      guesses // of the current password
	tries        store.Tried
	nonceTry     store.Limit // a right nonce gives it back
	proven       string      // the address that it was sent to
	hookNotified bool        // of the right current password
	mails        *quota
	texts        *quota
	notify       bool // notifications may be written
}

// UpdateUser changes the user's own password, metadata, e-mail address or phone number, after the checks of
// docs/api.md#checks-and-their-order. Addresses change when they are proven. Everything, the mails included, is one
// transaction; the passwords are hashed before it.
func (a *Accounts) UpdateUser(ctx context.Context, req RequestInfo, principal Principal,
	p UserUpdate) (store.User, error) {
	f := a.core.Begin(req)
	op := updateUserOp{f: *f, principal: principal, p: p}
	op.guesses = passwordGuesses(f, principal.User.Aud, cmp.Or(principal.User.Email, principal.User.Phone))
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
	case errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUserGone):
		return store.User{}, denied(CodeUserNotFound, "User from sub claim in JWT does not exist")
	case errors.Is(err, errChangedMeanwhile):
		return store.User{}, unavailable(err, time.Second)
	case err != nil:
		return store.User{}, failure("update user", addressError(err))
	}
	return out, nil
}

// commit hashes, then writes in one transaction.
func (op *updateUserOp) commit(ctx context.Context) (out store.User, err error) {
	if err := op.hashPasswords(ctx); err != nil {
		return out, err
	}
	op.notify = canNotify(ctx, &op.f, op.hash != "" && op.f.settings.Email.Notify.PasswordChanged || op.phone != "" &&
		op.f.settings.Email.Notify.PhoneChanged)
	err = op.f.commit(ctx, func(tx *tx) (err error) {
		out, err = op.write(ctx, tx)
		return err
	})
	if errors.Is(err, errCurrentInvalid) {
		err = op.wrongCurrent(ctx)
	}
	return out, err
}

var errCurrentInvalid = invalid(CodeCurrentPasswordInvalid, "Current password required when setting new password.")

// wrongCurrent counts a wrong current password like a sign-in's: a session alone allows no more guesses.
func (op *updateUserOp) wrongCurrent(ctx context.Context) error {
	if err := op.checkGuesses(ctx); err != nil {
		return err
	}
	return op.guesses.countWrong(ctx, &op.f, op.principal.User.ID, "current_password", errCurrentInvalid)
}

// checkGuesses refuses a try that the bucket does not have, outside of the transaction.
func (op *updateUserOp) checkGuesses(ctx context.Context) error {
	b := op.f.batch()
	op.addTried(b)
	if err := b.Send(ctx); err != nil {
		return failure("tries of a password", err)
	}
	return op.guesses.check(&op.f, op.tries)
}

// addTried adds the reading of the bucket, if a current password was given.
func (op *updateUserOp) addTried(b *batch) {
	if op.p.CurrentPassword != nil && op.needsCurrent() {
		b.Tried(&op.tries, op.principal.User.ID, op.guesses.account, op.guesses.place)
	}
}

// checkCurrent compares the current password, and calls the hook.
func (op *updateUserOp) checkCurrent(ctx context.Context) (err error) {
	if op.current, _, err = op.f.core.passwords.Check(ctx, op.against, *op.p.CurrentPassword); err != nil {
		return failure("check password", err)
	}
	if !op.current || !op.hookNotified {
		op.hookNotified = op.current
		if verdict := reportPassword(ctx, &op.f, op.principal.User.ID, op.current); verdict != nil {
			if err := op.checkGuesses(ctx); err != nil {
				return err
			}
			return op.guesses.recordRejected(ctx, &op.f, op.principal.User.ID, op.current, verdict)
		}
	}
	if !op.current && !op.needsNonce() { // otherwise the nonce is checked first
		return op.wrongCurrent(ctx)
	}
	return nil
}

// errChangedMeanwhile: the hash that was compared is no longer the user's. The principal's is the present one by now,
// so that the comparison can be made again.
var errChangedMeanwhile = errors.New("account: the password was changed meanwhile")

// endPauses ends the pauses between mails after a new password. It is not part of the transaction, in which it would
// come after the lock on the user; nothing is lost if it fails.
func (op *updateUserOp) endPauses(ctx context.Context, pauses [][]byte) {
	b := op.f.batch()
	b.ForgetLimits(pauses...)
	if err := b.Send(ctx); err != nil {
		op.f.core.log.Warn("the pauses between mails were not ended", "error", err)
	}
}

// validate checks what needs only the request and the principal.
func (op *updateUserOp) validate() (err error) {
	p, old := &op.p, &op.principal.User
	if p.Email != "" {
		if p.Email, err = parseEmail(p.Email); err != nil {
			return err
		}
	}
	if p.Phone != "" {
		if p.Phone, err = parsePhone(p.Phone); err != nil {
			return err
		}
		if err := op.f.settings.Phone.checkChannel(p.Channel); err != nil {
			return err
		}
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if p.Password != nil {
		if err := op.f.settings.checkPassword(*p.Password); err != nil {
			return err
		}
		if *p.Password == "" { // without a policy
			return unprocessable(CodeWeakPassword, "Password should not be empty.")
		}
	}
	if len(p.AppMetadata) > 0 && string(p.AppMetadata) != "null" {
		return denied(CodeNotAdmin, "Updating app_metadata requires admin privileges")
	}
	if p.Password != nil && old.IsAnonymous && p.Email == "" && p.Phone == "" {
		return unprocessable(CodeValidationFailed,
			"Updating password of an anonymous user without an email or phone is not allowed")
	}
	if op.data, err = parsePatch(userMetadata(p.Data)); err != nil {
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

// emailAtOnce reports whether an anonymous user's first address is confirmed by the setting alone.
func (op *updateUserOp) emailAtOnce() bool {
	return op.principal.User.IsAnonymous && op.f.settings.Email.Autoconfirm
}

// look reads which accounts have the wanted addresses, and checks what the sending is under.
func (op *updateUserOp) look(ctx context.Context) error {
	if op.email == "" && op.phone == "" {
		return nil
	}
	aud := op.principal.User.Aud
	var byEmail, byPhone store.User
	b := op.f.batch()
	if op.email != "" {
		b.Account(&byEmail, aud, op.email)
		if !op.emailAtOnce() {
			about := []string{op.email}
			if op.principal.User.Email != "" {
				about = append(about, op.principal.User.Email)
			}
			op.mails = boundUser(&op.f, mailQuota(&op.f, "email_change", op.f.settings.Email.Interval, aud, about...),
				&op.principal).apart(&op.f, aud, op.principal.User.Email)
			op.mails.look(b)
		}
	}
	if op.phone != "" {
		b.UserByPhone(&byPhone, aud, op.phone)
		if !op.f.settings.Phone.Autoconfirm {
			op.texts = boundUser(&op.f, smsQuota(&op.f, aud, op.phone), &op.principal)
			op.texts.look(b)
		}
	}
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	me := op.principal.User.ID
	// An account that never proved the address yields to a proof; an address that is set without one does not ask for
	// it.
	s := op.f.settings
	if byEmail.ID != uuid.Nil && byEmail.ID != me && (op.mails == nil || !s.yields(byEmail, "email", op.email)) {
		return errEmailExists
	}
	if byPhone.ID != uuid.Nil && byPhone.ID != me && (op.texts == nil || !s.yields(byPhone, "phone", op.phone)) {
		return errPhoneExists
	}
	return nil
}

// checkSending comes last among the checks: what it refuses is allowed later.
func (op *updateUserOp) checkSending() error {
	if op.mails != nil {
		if err := op.f.settings.checkMailSendable("email change"); err != nil {
			return err
		}
		if err := op.mails.check(op.f.now); err != nil {
			return err
		}
	}
	if op.texts != nil {
		if err := checkSMSSendable(&op.f, "phone_change", op.phone); err != nil {
			return err
		}
		return op.texts.check(op.f.now)
	}
	return nil
}

// hashPasswords compares and hashes, outside of the transaction.
func (op *updateUserOp) hashPasswords(ctx context.Context) (err error) {
	if op.p.Password == nil {
		return nil
	}
	if op.needsNonce() && op.p.Nonce == "" {
		return invalid(CodeReauthenticationNeeded, "Password update requires reauthentication")
	}
	op.against, op.same, op.current = op.principal.User.PasswordHash, false, false // this may be the second comparison
	if op.p.CurrentPassword != nil && op.needsCurrent() {
		if err := op.checkCurrent(ctx); err != nil {
			return err
		}
	}
	if op.against != "" {
		if op.same, _, err = op.f.core.passwords.Check(ctx, op.against, *op.p.Password); err != nil {
			return failure("check password", err)
		}
	}
	if op.hash, err = op.f.core.passwords.Hash(ctx, *op.p.Password); err != nil {
		return failure("hash password", err)
	}
	return nil
}

// needsNonce reports whether a new password needs a fresh proof of the address: not in young sessions.
func (op *updateUserOp) needsNonce() bool {
	v := op.principal.Session
	young := op.f.settings.Passwords.NonceMaxAge > 0 && v.ID != uuid.Nil &&
		op.f.now.Sub(v.CreatedAt) < op.f.settings.Passwords.NonceMaxAge
	return op.f.settings.Passwords.RequireNonce && !young
}

// needsCurrent reports whether a new password needs the old one: unless there is none, or the session was opened by a
// mail or an SMS to an address that the user had before. The session of a change of address is only as good as the one
// that requested the change.
func (op *updateUserOp) needsCurrent() bool {
	if !op.f.settings.Passwords.RequireCurrent || op.principal.User.PasswordHash == "" {
		return false
	}
	return !slices.ContainsFunc(amr(op.principal.Session), func(m token.AMR) bool {
		return m.Method == methodOTP && m.Provider == "" || m.Method == "magiclink" || m.Method == "recovery"
	})
}

var errNonce = unprocessable(CodeReauthenticationNotValid, "Nonce has expired or is invalid")

// checkPasswordChange makes the checks that need the present user, the nonce first.
func (op *updateUserOp) checkPasswordChange(ctx context.Context, tx *tx, now store.User) error {
	if op.needsNonce() {
		var macs [][]byte
		for _, who := range []string{now.Email, now.Phone} {
			if who != "" {
				macs = append(macs, digitMACs(&op.f, []store.Kind{store.KindReauthentication}, who, op.p.Nonce)...)
			}
		}
		n := store.Nonce{User: now.ID, MACs: macs, Now: op.f.now, MaxMisses: maxMisses}
		// A bucket of its own: it is taken from under the lock on the user, that of /verify before it.
		n.Tries, n.Place = codeTries(&op.f, "nonces", now.Aud, op.guesses.address)
		nonce, try, err := tx.RedeemNonce(ctx, n)
		op.nonceTry, op.proven, err = try, nonce.Address, tooManyCodes(err)
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
		return invalid(CodeCurrentPasswordRequired, "Current password required when setting new password.")
	case op.needsCurrent() && !op.current:
		return errCurrentInvalid
	case op.needsCurrent():
		if err := op.guesses.check(&op.f, op.tries); err != nil {
			return err
		}
	}
	return nil
}

var errSamePassword = unprocessable(CodeSamePassword, "New password should be different from the old password.")

// write is the transaction.
func (op *updateUserOp) write(ctx context.Context, tx *tx) (out store.User, err error) {
	sendable := op.checkSending()
	if sendable == nil {
		if err := op.takeQuotas(ctx, tx); err != nil {
			return out, err
		}
	}
	// A new password ends other sessions; what they request while it is written would outlive it.
	old, session, err := lockPrincipal(ctx, &op.f, tx, op.principal, op.addTried)
	if err != nil {
		return out, err
	}
	if err := op.requireAAL2(old, session); err != nil {
		return out, err
	}
	if err := op.f.settings.checkGrowth(old, op.data, store.MetadataPatch{}); err != nil {
		return out, err
	}
	if op.p.Password != nil {
		if err := op.checkPasswordChange(ctx, tx, old); err != nil {
			if err == error(errNonce) {
				tx.refuse(err)
				return out, op.recordNonce(ctx, tx, sendable == nil) // the miss counts, so it is committed
			}
			return out, err
		}
	}
	if sendable != nil {
		return out, sendable
	}
	// Last of all: any other password is set now, so that trying the present one cannot go unnoticed.
	if op.same {
		return out, errSamePassword
	}
	ch := updateUserTx{f: &op.f, op: op, b: tx.Batch(), old: old,
		patch: store.UserPatch{ID: old.ID, Now: op.f.now, UserMetadata: op.data}}
	if op.nonceTry.Key != nil {
		ch.b.Take(op.nonceTry, -1, op.f.now)
	}
	noteProof(&ch.patch, old, op.proven)
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

// requireAAL2 refuses changes that would give the account to the holder of the first factor alone.
func (op *updateUserOp) requireAAL2(now store.User, v store.Session) error {
	if (op.p.Password != nil || op.email != "" || op.phone != "") && isBelowAAL2(now, v) {
		return &Refusal{Kind: Unauthenticated, Code: CodeInsufficientAAL,
			Msg: "AAL2 session is required to update email or password when MFA is enabled."}
	}
	return nil
}

// recordNonce records a wrong nonce, at most once a minute for a user. It returns what takeQuotas took, if that was
// taken: the miss commits, and nothing is sent. The rows are locked already.
func (op *updateUserOp) recordNonce(ctx context.Context, tx *tx, taken bool) error {
	b := tx.Batch()
	for _, q := range []*quota{op.mails, op.texts} {
		if q != nil && taken {
			q.giveBack(b, op.f.now)
		}
	}
	user := op.principal.User.ID
	op.f.auditSeldom(b, "nonce note", user.String(),
		op.f.audit(store.ActionVerificationFailed, user, op.principal.Session.ID, "type", "reauthentication"))
	return b.Send(ctx)
}

// takeQuotas takes what the sending costs before the user is locked: limits are always taken first, or two transactions
// would deadlock.
func (op *updateUserOp) takeQuotas(ctx context.Context, tx *tx) error {
	b := tx.Batch()
	for _, q := range []*quota{op.mails, op.texts} {
		if q != nil {
			q.take(b, op.f.now)
		}
	}
	err := b.Send(ctx)
	for _, q := range []*quota{op.mails, op.texts} {
		if q != nil {
			err = q.refusalOf(err)
		}
	}
	return err
}

// notify adds a notification, if it is on and the user has an address.
func (ch *updateUserTx) notify(on bool, kind mail.Kind, v mail.Vars) {
	if on && ch.op.notify && ch.old.Email != "" {
		v.Email, v.Data = ch.old.Email, ch.old.UserMetadata
		ch.notifications = append(ch.notifications, notification(ch.f, kind, ch.old.Email, v))
	}
}

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

// update is one call of UpdateUser.
type update struct {
	f         *flow
	principal Principal
	p         UserUpdate

	email, phone string // wanted, and other than the present ones; "" for no change
	data         store.MetadataPatch

	// What the hash workers said of the passwords given, before the transaction.
	hash string // of the new one; "" for no change
	// against is the hash that was compared: who has another by now is asked to try again.
	against string
	// same: the new one is the old one. current: the current one was given, and right.
	same, current bool

	guesses      guesses // of the current password
	tried        store.Tried
	nonceTry     store.Limit // a right nonce gives it back
	hookNotified bool        // of the right one
	mails        *quota
	texts        *quota
	notify       bool       // may be written
	notified     int        // were
	sent         []outgoing // written with the change
	forget       [][]byte   // pauses that end
}

// UpdateUser changes the caller's password, metadata, e-mail address or phone number, after the checks of
// docs/api.md#checks-and-their-order. Addresses change when they are proven. Everything, the mails included, is one
// transaction; the passwords are hashed before it.
func (a *Accounts) UpdateUser(ctx context.Context, req RequestInfo, principal Principal, p UserUpdate) (store.User, error) {
	return updateUser(ctx, a.begin(req), principal, p)
}

func updateUser(ctx context.Context, f *flow, principal Principal, p UserUpdate) (store.User, error) {
	u := update{f: f, principal: principal, p: p}
	u.guesses = passwordGuesses(f, principal.User.Aud, cmp.Or(principal.User.Email, principal.User.Phone))
	if err := u.judge(); err != nil {
		return store.User{}, err
	}
	if err := u.assured(principal.User, principal.Session); err != nil {
		return store.User{}, err
	}
	if err := u.look(ctx); err != nil {
		return store.User{}, err
	}
	out, err := u.commit(ctx)
	if errors.Is(err, errMeanwhile) { // a second click on the same button, most likely
		out, err = u.commit(ctx)
	}
	switch {
	case errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUserGone):
		return store.User{}, denied(CodeUserNotFound, "User from sub claim in JWT does not exist")
	case errors.Is(err, store.ErrEmailTaken):
		return store.User{}, errEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return store.User{}, errPhoneExists
	case errors.Is(err, errMeanwhile):
		return store.User{}, unavailable(err, time.Second)
	case err != nil:
		return store.User{}, failure("update user", err)
	}
	f.countNotifications(ctx, u.notified)
	u.endPauses(ctx)
	if err := f.send(ctx, u.sent...); err != nil {
		return store.User{}, err
	}
	return out, nil
}

// commit hashes, then writes in one transaction.
func (u *update) commit(ctx context.Context) (out store.User, err error) {
	if err := u.hashing(ctx); err != nil {
		return out, err
	}
	var refusal error
	u.notify = canNotify(ctx, u.f, u.hash != "" && u.f.settings.Email.NotifyPasswordChanged || u.phone != "" && u.f.settings.Email.NotifyPhoneChanged)
	err = u.f.inTx(ctx, func(tx *store.Tx) (err error) {
		u.notified, u.forget, refusal = 0, nil, nil
		out, err = u.write(ctx, tx)
		if r, ok := errors.AsType[*Refusal](err); ok && r == errNonce {
			refusal = err // the miss counts, so it is committed
			return nil
		}
		return err
	})
	if errors.Is(err, errCurrentInvalid) {
		err = u.wrongCurrent(ctx)
	}
	if err == nil {
		err = refusal
	}
	return out, err
}

var errCurrentInvalid = invalid(CodeCurrentPasswordInvalid, "Current password required when setting new password.")

// wrongCurrent counts a wrong current password as a sign-in's is counted: whoever has a session alone may guess no
// oftener.
func (u *update) wrongCurrent(ctx context.Context) error {
	if err := u.mayGuess(ctx); err != nil {
		return err
	}
	return u.guesses.wrong(ctx, u.principal.User.ID, "current_password", errCurrentInvalid)
}

// mayGuess refuses what the bucket has no try for, outside of the transaction.
func (u *update) mayGuess(ctx context.Context) error {
	b := u.f.batch()
	u.addTried(b)
	if err := b.Send(ctx); err != nil {
		return failure("tries of a password", err)
	}
	return u.guesses.judge(u.tried)
}

// addTried adds the reading of the bucket, where a current password was given.
func (u *update) addTried(b *store.Batch) {
	if u.p.CurrentPassword != nil && u.needsCurrent() {
		b.Tried(&u.tried, u.principal.User.ID, u.guesses.account, u.guesses.place)
	}
}

// checkCurrent compares the current password, and tells the hook.
func (u *update) checkCurrent(ctx context.Context) (err error) {
	if u.current, _, err = u.f.core.passwords.Check(ctx, u.against, *u.p.CurrentPassword); err != nil {
		return failure("check password", err)
	}
	if !u.current || !u.hookNotified {
		u.hookNotified = u.current
		if verdict := reportPassword(ctx, u.f, u.principal.User.ID, u.current); verdict != nil {
			if err := u.mayGuess(ctx); err != nil {
				return err
			}
			return u.guesses.rejected(ctx, u.principal.User.ID, u.current, verdict)
		}
	}
	if !u.current && !u.needsNonce() { // else the nonce is judged first
		return u.wrongCurrent(ctx)
	}
	return nil
}

// errMeanwhile: the hash that was compared is no longer the user's. The caller's is the one of now, so that the
// comparison can be made again.
var errMeanwhile = errors.New("account: the password was changed meanwhile")

// endPauses lets mails be asked for again at once after a new password. It is not part of the
// transaction, in which it would come after the lock on the user; nothing is lost if it fails.
func (u *update) endPauses(ctx context.Context) {
	if len(u.forget) == 0 || u.mails != nil || u.texts != nil {
		return
	}
	b := u.f.batch()
	b.ForgetLimits(u.forget...)
	if err := b.Send(ctx); err != nil {
		u.f.core.log.Warn("the pauses between mails were not ended", "err", err)
	}
}

// judge is what can be said from the request and the caller alone.
func (u *update) judge() (err error) {
	p, old := &u.p, &u.principal.User
	if p.Email != "" {
		if p.Email, err = goodEmail(p.Email); err != nil {
			return err
		}
	}
	if p.Phone != "" {
		if p.Phone, err = goodPhone(p.Phone); err != nil {
			return err
		}
		if err := u.f.settings.Phone.goodChannel(p.Channel); err != nil {
			return err
		}
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if p.Password != nil {
		if err := u.f.settings.goodPassword(*p.Password); err != nil {
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
		return unprocessable(CodeValidationFailed, "Updating password of an anonymous user without an email or phone is not allowed")
	}
	if u.data, err = parsePatch(userMetadata(p.Data)); err != nil {
		return err
	}
	if p.Email != old.Email {
		u.email = p.Email
	}
	if p.Phone != old.Phone {
		u.phone = p.Phone
	}
	return nil
}

// emailAtOnce: an anonymous user's first address is confirmed by the setting alone.
func (u *update) emailAtOnce() bool {
	return u.principal.User.IsAnonymous && u.f.settings.Email.Autoconfirm
}

// look reads who has the wanted addresses, and judges what the sending is under.
func (u *update) look(ctx context.Context) error {
	if u.email == "" && u.phone == "" {
		return nil
	}
	aud := u.principal.User.Aud
	var byEmail, byPhone store.User
	b := u.f.batch()
	if u.email != "" {
		b.Account(&byEmail, aud, u.email)
		if !u.emailAtOnce() {
			about := []string{u.email}
			if u.principal.User.Email != "" {
				about = append(about, u.principal.User.Email)
			}
			u.mails = mailQuota(u.f, "email_change", u.f.settings.Email.Interval, aud, about...)
			u.mails.look(b)
		}
	}
	if u.phone != "" {
		b.UserByPhone(&byPhone, aud, u.phone)
		if !u.f.settings.Phone.Autoconfirm {
			u.texts = smsQuota(u.f, aud, u.phone)
			u.texts.look(b)
		}
	}
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	me := u.principal.User.ID
	// An account that never proved the address gives way to the proof; what is set without one does not ask for it.
	if byEmail.ID != uuid.Nil && byEmail.ID != me && (u.mails == nil || !unproven(byEmail, "email", u.email)) {
		return errEmailExists
	}
	if byPhone.ID != uuid.Nil && byPhone.ID != me && (u.texts == nil || !unproven(byPhone, "phone", u.phone)) {
		return errPhoneExists
	}
	return nil
}

// judgeSending comes last among the checks: what it refuses is only a matter of time.
func (u *update) judgeSending() error {
	if u.mails != nil {
		if err := u.f.settings.canSendMail("email change"); err != nil {
			return err
		}
		if err := u.mails.judge(u.f.now); err != nil {
			return err
		}
	}
	if u.texts != nil {
		if err := canSendSMS(u.f, "phone_change", u.phone); err != nil {
			return err
		}
		return u.texts.judge(u.f.now)
	}
	return nil
}

// hashing compares and hashes, outside of the transaction.
func (u *update) hashing(ctx context.Context) (err error) {
	if u.p.Password == nil {
		return nil
	}
	if u.needsNonce() && u.p.Nonce == "" {
		return invalid(CodeReauthenticationNeeded, "Password update requires reauthentication")
	}
	u.against, u.same, u.current = u.principal.User.PasswordHash, false, false // this may be the second comparison
	if u.p.CurrentPassword != nil && u.needsCurrent() {
		if err := u.checkCurrent(ctx); err != nil {
			return err
		}
	}
	if u.against != "" {
		if u.same, _, err = u.f.core.passwords.Check(ctx, u.against, *u.p.Password); err != nil {
			return failure("check password", err)
		}
	}
	if u.hash, err = u.f.core.passwords.Hash(ctx, *u.p.Password); err != nil {
		return failure("hash password", err)
	}
	return nil
}

// needsNonce: a new password wants a fresh proof of the address, except from young sessions.
func (u *update) needsNonce() bool {
	v := u.principal.Session
	young := u.f.settings.Passwords.NonceMaxAge > 0 && v.ID != uuid.Nil && u.f.now.Sub(v.CreatedAt) < u.f.settings.Passwords.NonceMaxAge
	return u.f.settings.Passwords.RequireNonce && !young
}

// needsCurrent: a new password wants the old one, unless there is none or the session came by a mail or an
// SMS to an address that the user had before. The session of a change of address is only as good as the
// one that asked for the change.
func (u *update) needsCurrent() bool {
	if !u.f.settings.Passwords.RequireCurrent || u.principal.User.PasswordHash == "" {
		return false
	}
	return !slices.ContainsFunc(amr(u.principal.Session), func(m token.AMR) bool {
		return m.Method == methodOTP && m.Provider == "" || m.Method == "magiclink" || m.Method == "recovery"
	})
}

var errNonce = unprocessable(CodeReauthenticationNotValid, "Nonce has expired or is invalid")

// mayChangePassword are the checks that need the user as he is now, nonce first.
func (u *update) mayChangePassword(ctx context.Context, tx *store.Tx, now store.User) error {
	if u.needsNonce() {
		var macs [][]byte
		for _, who := range []string{now.Email, now.Phone} {
			if who != "" {
				macs = append(macs, digitMACs(u.f, []store.Kind{store.KindReauthentication}, who, u.p.Nonce)...)
			}
		}
		n := store.Nonce{User: now.ID, MACs: macs, Now: u.f.now, MaxMisses: maxMisses}
		// A bucket of its own: it is taken from under the lock on the user, and that of /verify before it.
		n.Tries, n.Place = codeTries(u.f, "nonces", now.Aud, u.guesses.address)
		_, try, err := tx.RedeemNonce(ctx, n)
		u.nonceTry, err = try, tooManyCodes(err)
		if errors.Is(err, store.ErrNotFound) {
			return errNonce
		}
		if err != nil {
			return err
		}
	}
	switch {
	case subtle.ConstantTimeCompare([]byte(now.PasswordHash), []byte(u.against)) == 0:
		u.principal.User.PasswordHash = now.PasswordHash
		return errMeanwhile
	case u.needsCurrent() && u.p.CurrentPassword == nil:
		return invalid(CodeCurrentPasswordRequired, "Current password required when setting new password.")
	case u.needsCurrent() && !u.current:
		return errCurrentInvalid
	case u.needsCurrent():
		if err := u.guesses.judge(u.tried); err != nil {
			return err
		}
	}
	return nil
}

var errSamePassword = unprocessable(CodeSamePassword, "New password should be different from the old password.")

// write is the transaction.
func (u *update) write(ctx context.Context, tx *store.Tx) (out store.User, err error) {
	sendable := u.judgeSending()
	if sendable == nil {
		if err := u.takeFirst(ctx, tx); err != nil {
			return out, err
		}
	}
	// A new password ends the sessions of others, and what they asked for while it was written would outlive it.
	old, session, err := lockPrincipal(ctx, u.f, tx, u.principal, u.addTried)
	if err != nil {
		return out, err
	}
	if err := u.assured(old, session); err != nil {
		return out, err
	}
	if err := u.f.settings.checkGrowth(old, u.data, store.MetadataPatch{}); err != nil {
		return out, err
	}
	if u.p.Password != nil {
		if err := u.mayChangePassword(ctx, tx, old); err != nil {
			if err == error(errNonce) && sendable == nil {
				if lost := u.giveBack(ctx, tx); lost != nil {
					return out, lost
				}
			}
			return out, err
		}
	}
	if sendable != nil {
		return out, sendable
	}
	// Last of all: any other password is set now, so that trying the present one cannot go unnoticed.
	if u.same {
		return out, errSamePassword
	}
	ch := change{f: u.f, op: u, b: tx.Batch(), old: old, patch: store.UserPatch{ID: old.ID, Now: u.f.now, UserMetadata: u.data}}
	if u.nonceTry.Key != nil {
		ch.b.Take(u.nonceTry, -1, u.f.now)
	}
	if u.hash != "" && ch.passwordWaits() {
		ch.pending = u.hash
	} else if u.hash != "" {
		ch.password()
	}
	if u.email != "" {
		if err := ch.email(); err != nil {
			return out, err
		}
	}
	if u.phone != "" {
		if err := ch.phone(); err != nil {
			return out, err
		}
	}
	ch.fill()
	ch.b.User(&out, old.ID)
	return out, ch.b.Send(ctx)
}

// assured refuses what gives an account away to whoever knows the first factor alone.
func (u *update) assured(now store.User, v store.Session) error {
	if (u.p.Password != nil || u.email != "" || u.phone != "") && low(now, v) {
		return &Refusal{Kind: Unauthenticated, Code: CodeInsufficientAAL, Msg: "AAL2 session is required to update email or password when MFA is enabled."}
	}
	return nil
}

// giveBack returns what takeFirst took: a miss of the nonce commits, and nothing is sent. The rows are locked
// already.
func (u *update) giveBack(ctx context.Context, tx *store.Tx) error {
	b := tx.Batch()
	for _, q := range []*quota{u.mails, u.texts} {
		if q != nil {
			q.giveBack(b, u.f.now)
		}
	}
	return b.Send(ctx)
}

// takeFirst takes what the sending costs before the user is locked: everybody takes limits first, or
// two would wait for each other.
func (u *update) takeFirst(ctx context.Context, tx *store.Tx) error {
	b := tx.Batch()
	for _, q := range []*quota{u.mails, u.texts} {
		if q != nil {
			q.take(b, u.f.now)
		}
	}
	err := b.Send(ctx)
	for _, q := range []*quota{u.mails, u.texts} {
		if q != nil {
			err = q.refused(err)
		}
	}
	return err
}

// notify adds a notification, if it is on and there is somebody to tell.
func (ch *change) notify(on bool, kind mail.Kind, v mail.Vars) {
	if on && ch.op.notify && ch.old.Email != "" {
		v.Email, v.Data = ch.old.Email, ch.old.UserMetadata
		ch.notifications = append(ch.notifications, notification(ch.f, kind, ch.old.Email, v))
	}
}

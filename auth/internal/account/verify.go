package account

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Types of a verification whose name differs from the name of the token's kind.
const (
	typeEmail       = "email"
	typeEmailChange = "email_change"
)

// byLink maps the type of a verification by link, or by a one-time code with an e-mail address, to the kinds of tokens
// that it may redeem. byPhone does so for a code with a phone number. A token is redeemed only for what it was sent for
// (docs/tokens.md#one-time-tokens). Kinds that come first are preferred.
var (
	byLink = map[string][]store.Kind{
		typeEmail:       {store.KindSignup, store.KindInvite, store.KindMagicLink},
		"signup":        {store.KindSignup},
		"invite":        {store.KindInvite},
		"recovery":      {store.KindRecovery},
		"magiclink":     {store.KindMagicLink},
		typeEmailChange: {store.KindEmailChangeCurrent, store.KindEmailChangeNew},
	}
	byPhone = map[string][]store.Kind{
		"sms":          {store.KindSignup, store.KindSMS},
		"phone_change": {store.KindPhoneChange},
	}
)

// typeOf returns the type that the answer names for a redeemed token.
func typeOf(t store.Token) string {
	switch {
	case isChange(t.Kind) && t.Kind != store.KindPhoneChange:
		return typeEmailChange
	case t.Kind == store.KindSMS || t.Kind == store.KindSignup && !isEmail(t.Address):
		return "sms"
	}
	return string(t.Kind)
}

func isChange(k store.Kind) bool {
	return k == store.KindEmailChangeCurrent || k == store.KindEmailChangeNew || k == store.KindPhoneChange
}

func isEmail(who string) bool { return strings.Contains(who, "@") }

var (
	errLinkExpired  = refusal.Denied(refusal.CodeOTPExpired, "Email link is invalid or has expired")
	errTokenExpired = refusal.Denied(refusal.CodeOTPExpired, "Token has expired or is invalid")
)

// proof is what the client presents to redeem a token: the hash of a link's secret, or a one-time code (digits) with
// the address that it was sent to.
type proof struct {
	kinds   []store.Kind
	link    []byte
	former  bool // the link has the form of the former service's links
	pkce    bool
	address string
	digits  string
	missed  *refusal.Refusal
}

// proofOf returns the proof in a request. It checks the request as far as that is possible without the database.
func proofOf(p flow.Verify) (proof, error) {
	if p.Type == "" {
		return proof{}, refusal.NotValid("Verify requires a verification type")
	}
	if (p.Token == "") == (p.TokenHash == "") {
		return proof{}, refusal.NotValid("Verify requires either a token or a token hash")
	}
	if p.TokenHash != "" {
		if p.Email != "" || p.Phone != "" || p.RedirectTo != "" {
			return proof{}, refusal.NotValid("Only the token_hash and type should be provided")
		}
		return linkProof(p.Type, p.TokenHash)
	}
	switch {
	case p.Email != "" && p.Phone != "":
		return proof{}, refusal.NotValid("Only an email address or phone number should be provided on verify")
	case p.Phone != "":
		who, err := flow.ParsePhone(p.Phone)
		return proof{kinds: byPhone[p.Type], address: who, digits: p.Token, missed: errTokenExpired}, err
	case p.Email != "":
		who, err := address.Email(p.Email)
		if err != nil {
			return proof{}, refusal.Unprocessable(refusal.CodeValidationFailed, "Invalid email format")
		}
		return proof{kinds: byLink[p.Type], address: who, digits: p.Token, missed: errTokenExpired}, nil
	}
	return linkProof(p.Type, p.Token)
}

func linkProof(typ, text string) (proof, error) {
	kinds := byLink[typ]
	if kinds == nil {
		return proof{}, refusal.NotValid("Invalid email verification type")
	}
	pf := proof{kinds: kinds, missed: errLinkExpired}
	if hash, pkce, ok := flow.LinkHash(text); ok {
		pf.link, pf.pkce = hash, pkce
	} else if hash, pkce, ok := flow.FormerLink(text); ok {
		pf.link, pf.pkce, pf.former, pf.kinds = hash, pkce, true, byFormerLink[typ]
	}
	return pf, nil
}

// Verify redeems a link or a one-time code. One transaction consumes the token and makes the changes that the token was
// sent for. Of parallel calls with the same token, one succeeds.
func (a *Accounts) Verify(ctx context.Context, req flow.RequestInfo, p flow.Verify) (flow.Verified, error) {
	f := a.core.Begin(req)
	pf, err := proofOf(p)
	if err != nil {
		return flow.Verified{}, err
	}
	if pf.former && !f.CarriesLinks() {
		pf.link = nil
	}
	op := verifyOp{f: *f, p: p}
	if pf.former && pf.link != nil {
		if err := flow.TakeFormerLinkTry(ctx, f); err != nil {
			return flow.Verified{}, err
		}
		defer func() {
			if op.found {
				flow.GiveBackFormerLinkTry(ctx, f)
			}
		}()
	}
	if p.Password != "" {
		if err := op.preparePassword(ctx, pf); err != nil {
			return flow.Verified{}, err
		}
	}
	var out flow.Verified
	e := &f.Settings.Email
	op.notify = flow.CanNotify(ctx, f, p.Type == typeEmailChange && e.Notify.EmailChanged || p.Type == "phone_change" &&
		(e.Notify.PhoneChanged || e.Notify.IdentityLinked))
	redeem := func() error {
		return f.Commit(ctx, func(tx *flow.Tx) (err error) {
			op.found = false
			out, err = op.redeem(ctx, tx, pf)
			if errors.Is(err, store.ErrNotFound) {
				tx.Refuse(pf.missed)
				return op.recordMiss(ctx, tx, pf) // commits, so that the wrong code or link is counted
			}
			return err
		})
	}
	if err := op.prepared(ctx, redeem); err != nil {
		return flow.Verified{}, refusal.Failure("verify", addressError(err))
	}
	if out.Half || out.Code != "" {
		return out, nil
	}
	flow.EnforceSessionLimit(ctx, f, out.User.ID)
	g, err := flow.GrantNew(ctx, f, out.User, &op.open)
	if err != nil {
		return flow.Verified{}, err
	}
	g.Type = out.Type
	out.Grant = &g
	return out, nil
}

// preparePassword checks the new password, and hashes it if the token exists.
func (op *verifyOp) preparePassword(ctx context.Context, pf proof) error {
	if err := op.f.Settings.CheckPassword(op.p.Password); err != nil {
		return err
	}
	waits, err := op.isPending(ctx, pf)
	if err != nil {
		return refusal.Failure("verify", err)
	}
	if !waits {
		return nil
	}
	return op.hashPassword(ctx)
}

// prepared calls redeem. If redeem finds that a step outside of the transaction is needed first, it takes the step and
// calls redeem again.
func (op *verifyOp) prepared(ctx context.Context, redeem func() error) error {
	err := redeem()
	if errors.Is(err, errPasswordNotHashed) { // the token was created after preparePassword looked for it
		if err = op.hashPassword(ctx); err == nil {
			err = redeem()
		}
	}
	if errors.Is(err, errNewUser) {
		u := op.owner.user(&op.f, op.owner.NewID(), true, nil)
		if err = op.owner.CheckCreation(ctx, &op.f, u); err == nil {
			err = redeem()
		}
	}
	if errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) {
		op.displace = true // an account that never proved the address loses it
		err = redeem()
	}
	return err
}

// addressError converts an error to the refusal of an address that another user got between the request for it and its
// proof. It returns other errors unchanged.
func addressError(err error) error {
	switch {
	case errors.Is(err, store.ErrEmailTaken):
		return flow.ErrEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return errPhoneExists
	}
	return err
}

var errPhoneExists = refusal.Unprocessable(refusal.CodePhoneExists,
	"A user with this phone number has already been registered")

// verifyOp is the state of one call of Verify.
type verifyOp struct {
	f      flow.Flow
	p      flow.Verify
	hash   string // hash of p.Password
	notify bool   // the budget allows notifications
	open   flow.SessionDraft
	// displace is set if another account has the proven address without having proven it, and loses it.
	displace bool
	// found is set if the token exists, even if redeeming it fails.
	found bool
	// owner is the sign-up of a new account for the proven address, if the address leaves an account that never proved
	// it; nil: none is prepared yet.
	owner *signupCandidate
}

// take consumes the token, or returns ErrNotFound if there is no such token. If the proof is a one-time code, try is
// the bucket against which the code was counted.
func (op *verifyOp) take(ctx context.Context, tx *flow.Tx, pf proof) (t store.Token, try store.Limit, err error) {
	switch {
	case pf.digits != "":
		code, test := op.f.Settings.Phone.TestCode(pf.address, op.f.Now)
		t, try, err = tx.RedeemDigits(ctx, op.typedDigits(pf))
		err = flow.TooManyCodes(err)
		if test && errors.Is(err, store.ErrNotFound) &&
			subtle.ConstantTimeCompare([]byte(code), []byte(pf.digits)) == 1 {
			t, err = op.testToken(ctx, tx, pf)
		}
	case pf.link == nil:
		err = store.ErrNotFound
	default:
		t, err = tx.RedeemLink(ctx, pf.link, pf.kinds, op.f.Now)
	}
	return t, try, err
}

// redeem consumes the token and makes the changes that the token was sent for. It returns ErrNotFound if there is no
// such token.
func (op *verifyOp) redeem(ctx context.Context, tx *flow.Tx, pf proof) (flow.Verified, error) {
	t, try, err := op.take(ctx, tx, pf)
	if err != nil {
		return flow.Verified{}, err
	}
	op.found = true
	if pf.link != nil && pf.pkce != (t.Flow != uuid.Nil) {
		return flow.Verified{}, pf.missed // the link's prefix pkce_ was added or removed; the link stays valid
	}
	if op.p.Password != "" && op.hash == "" {
		return flow.Verified{}, errPasswordNotHashed
	}
	u, err := tx.LockUser(ctx, t.User)
	if err != nil {
		return flow.Verified{}, err
	}
	w := verifyTx{f: &op.f, op: op, b: tx.Batch(), u: u, t: t, patch: store.UserPatch{Now: op.f.Now}}
	if try.Key != nil { // the code was right: give the try back
		w.b.Take(try, -1, op.f.Now)
	}
	if !isChange(t.Kind) && leaves(op.f.Settings, u, t.Address) {
		if err := w.moveOut(); err != nil {
			return flow.Verified{}, err
		}
	}
	if w.u.BannedUntil.After(op.f.Now) {
		return flow.Verified{}, refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	w.patch.ID = w.u.ID
	out := flow.Verified{Type: op.typeOf(t, w.u, pf)}
	if out.Half, err = w.apply(); err != nil {
		return flow.Verified{}, err
	}
	if op.displace {
		if err := w.displaceUnproven(ctx, tx); err != nil {
			return flow.Verified{}, err
		}
	}
	if op.p.Link && pf.pkce && !out.Half {
		if out.Code, err = w.issueCode(ctx, tx); err != nil {
			return flow.Verified{}, err
		}
	} else if !out.Half {
		op.open = flow.NewSession(&op.f, w.u.ID, flow.MethodOTP)
		// The code of a test number is in a configuration file, so using it makes no place known.
		if _, test := op.f.Settings.Phone.TestCode(pf.address, op.f.Now); test {
			op.open.Row.Place = nil
		}
		// The session gets the type of change as its provider. The client chose the address that was proven, so
		// needsCurrent must not take the session for one that a mail to an earlier address opened.
		if isChange(t.Kind) {
			op.open.Row.AMR = flow.MustJSON([]token.AMR{{Method: flow.MethodOTP, Timestamp: op.f.Now.Unix(),
				Provider: out.Type}})
		}
		w.patch.LastSignInAt = &op.f.Now
	}
	w.fill(out)
	w.b.User(&out.User, w.u.ID)
	return out, w.b.Send(ctx)
}

// typeOf returns the type that the answer names. If a link proved only the address and the user has no password, the
// type is recovery, so that client libraries ask the user to choose a password.
func (op *verifyOp) typeOf(t store.Token, u store.User, pf proof) string {
	switch {
	case pf.former:
		return formerType(op.p.Type, t.Kind)
	case op.p.Link && t.Contested && t.PasswordHash == "" && t.UserMetadata == nil && t.Identity == uuid.Nil &&
		u.PasswordHash == "":
		return string(store.KindRecovery)
	}
	return typeOf(t)
}

// errNewUser is returned if the proven address moves from the account that has it to a new account, but the hook that
// may refuse new accounts has not been called yet.
var errNewUser = errors.New("account: verify: the address gets a new account")

// moveOut removes the proven address from an account that never proved it, and continues with a new account for the
// address.
func (w *verifyTx) moveOut() error {
	f, op, provider := w.f, w.op, "email"
	if !isEmail(w.t.Address) {
		provider = "phone"
	}
	if f.Settings.DisableSignup {
		return flow.ErrSignupDisabled
	}
	if op.owner == nil {
		op.owner = &signupCandidate{aud: w.u.Aud, provider: provider, address: w.t.Address}
		return errNewUser
	}
	u := op.owner.user(f, op.owner.NewID(), true, nil)
	u.EmailUnproven, u.PhoneUnproven = false, false
	action := flow.RemoveAddress(w.b, w.u, provider, f.Now)
	w.b.InsertUser(u)
	w.b.InsertIdentity(u.Identities[0])
	flow.EnqueueCreatedHook(f, w.b, true, u.ID)
	w.b.Audit(f.Audit(action, u.ID, uuid.Nil, "user_id", w.u.ID.String(), "reason", "address_proven"))
	w.b.Audit(f.Audit(store.ActionUserSignedUp, u.ID, uuid.Nil, "provider", provider))
	w.u = u
	return nil
}

// typedDigits returns the one-time code of a proof for the store. Wrong codes for a test number are not counted.
func (op *verifyOp) typedDigits(pf proof) store.Digits {
	d := store.Digits{Aud: op.f.Aud(), Address: pf.address, Kinds: pf.kinds,
		MACs: flow.DigitMACs(&op.f, pf.kinds, pf.address, pf.digits), Now: op.f.Now}
	if _, test := op.f.Settings.Phone.TestCode(pf.address, op.f.Now); !test {
		d.MaxMisses = flow.MaxMisses
		d.Tries, d.Place = flow.CodeTries(&op.f, "codes", d.Aud, pf.address)
	}
	return d
}

// isPending reports whether the token of a proof exists, so that no password is hashed for invented tokens. It does not
// count a wrong code; redeem does.
func (op *verifyOp) isPending(ctx context.Context, pf proof) (bool, error) {
	switch {
	case pf.digits != "":
		return op.f.Core.DB.DigitsWait(ctx, op.typedDigits(pf))
	case pf.link != nil:
		return op.f.Core.DB.LinkWaits(ctx, pf.link, pf.kinds, op.f.Now)
	}
	return false, nil
}

// errPasswordNotHashed is returned if redeem finds a token that isPending did not find: the given password is not
// hashed yet.
var errPasswordNotHashed = errors.New("account: verify: the password is not hashed")

func (op *verifyOp) hashPassword(ctx context.Context) (err error) {
	if op.hash, err = op.f.Core.Passwords.Hash(ctx, op.p.Password); err != nil {
		return refusal.Failure("hash password", err)
	}
	return nil
}

// testToken returns a token for the fixed code of a test number if no code was requested, or the last one was used: the
// fixed code is valid at any time for the user with the number.
func (op *verifyOp) testToken(ctx context.Context, tx *flow.Tx, pf proof) (store.Token, error) {
	if !slices.Contains(pf.kinds, store.KindSMS) {
		// The token of a pending change of number lives for a year, so it needs no substitute.
		return store.Token{}, store.ErrNotFound
	}
	var u store.User
	if err := tx.Run(ctx, func(b *flow.Batch) { b.UserByPhone(&u, op.f.Aud(), pf.address) }); err != nil {
		return store.Token{}, err
	}
	if u.ID == uuid.Nil {
		return store.Token{}, store.ErrNotFound
	}
	return store.Token{User: u.ID, Kind: store.KindSMS, Address: pf.address, CreatedAt: op.f.Now, ExpiresAt: op.f.Now},
		nil
}

// recordMiss writes an audit row about a failed verification, at most once a minute for each address, and for all
// unknown links together.
func (op *verifyOp) recordMiss(ctx context.Context, tx *flow.Tx, pf proof) error {
	typ := op.p.Type
	if pf.kinds == nil { // an unknown type, which may be any text
		typ = ""
	}
	b := tx.Batch()
	op.f.AuditSeldom(b, "verify note", pf.address,
		op.f.Audit(store.ActionVerificationFailed, uuid.Nil, uuid.Nil, "type", typ))
	return b.Send(ctx)
}

// issueCode returns a new PKCE code for the token's flow. If the flow is gone, the link is refused and stays valid.
func (w *verifyTx) issueCode(ctx context.Context, tx *flow.Tx) (string, error) {
	var f store.Flow
	if err := tx.Run(ctx, func(b *flow.Batch) { b.Flow(&f, w.t.Flow) }); err != nil {
		return "", err
	}
	if f.ID == uuid.Nil || !w.f.Now.Before(f.ExpiresAt) || !f.IssuedAt.IsZero() {
		return "", refusal.Invalid(refusal.CodeFlowStateNotFound, "No associated flow state found.")
	}
	text, hash := token.NewLinkToken()
	w.codeHash = hash[:]
	return text, nil
}

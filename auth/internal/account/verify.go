package account

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// The types of a verification that are not the name of a token's kind.
const (
	typeEmail       = "email"
	typeEmailChange = "email_change"
)

// byLink holds the kinds of token that a link's type finds; with digits and an e-mail address it is used too, with a
// phone number byPhone: a token is redeemed only as what it was sent for (docs/tokens.md#one-time-tokens). Of several,
// the earlier kind is preferred.
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
	errLinkExpired  = denied(CodeOTPExpired, "Email link is invalid or has expired")
	errTokenExpired = denied(CodeOTPExpired, "Token has expired or is invalid")
)

// proof is what the client presents: a link's hash, or digits with the address that they were sent to.
type proof struct {
	kinds   []store.Kind
	link    []byte
	former  bool // the link has the other service's form
	pkce    bool
	address string
	digits  string
	missed  *Refusal
}

// proof checks a verification before anything is looked up.
func (s *Settings) proof(p Verify) (proof, error) {
	if p.Type == "" {
		return proof{}, notValid("Verify requires a verification type")
	}
	if (p.Token == "") == (p.TokenHash == "") {
		return proof{}, notValid("Verify requires either a token or a token hash")
	}
	if p.TokenHash != "" {
		if p.Email != "" || p.Phone != "" || p.RedirectTo != "" {
			return proof{}, notValid("Only the token_hash and type should be provided")
		}
		return linkProof(p.Type, p.TokenHash)
	}
	switch {
	case p.Email != "" && p.Phone != "":
		return proof{}, notValid("Only an email address or phone number should be provided on verify")
	case p.Phone != "":
		who, err := parsePhone(p.Phone)
		return proof{kinds: byPhone[p.Type], address: who, digits: p.Token, missed: errTokenExpired}, err
	case p.Email != "":
		who, err := address.Email(p.Email)
		if err != nil {
			return proof{}, unprocessable(CodeValidationFailed, "Invalid email format")
		}
		return proof{kinds: byLink[p.Type], address: who, digits: p.Token, missed: errTokenExpired}, nil
	}
	return linkProof(p.Type, p.Token)
}

func linkProof(typ, text string) (proof, error) {
	kinds := byLink[typ]
	if kinds == nil {
		return proof{}, notValid("Invalid email verification type")
	}
	pf := proof{kinds: kinds, missed: errLinkExpired}
	if hash, pkce, ok := linkHash(text); ok {
		pf.link, pf.pkce = hash, pkce
	} else if hash, pkce, ok := formerLink(text); ok {
		pf.link, pf.pkce, pf.former, pf.kinds = hash, pkce, true, byFormerLink[typ]
	}
	return pf, nil
}

// Verify redeems a link or digits. In one transaction it consumes the token and does what the token was
// for; parallel calls with one token do it once.
func (a *Accounts) Verify(ctx context.Context, req RequestInfo, p Verify) (Verified, error) {
	f := a.core.Begin(req)
	pf, err := f.settings.proof(p)
	if err != nil {
		return Verified{}, err
	}
	if pf.former && !f.carriesLinks() {
		pf.link = nil
	}
	op := verifyOp{f: *f, p: p}
	if pf.former && pf.link != nil {
		if err := takeFormerLinkTry(ctx, f); err != nil {
			return Verified{}, err
		}
		defer func() {
			if op.found {
				giveBackFormerLinkTry(ctx, f)
			}
		}()
	}
	if p.Password != "" {
		if err := f.settings.checkPassword(p.Password); err != nil {
			return Verified{}, err
		}
		waits, err := op.isPending(ctx, pf)
		if err != nil {
			return Verified{}, failure("verify", err)
		}
		if waits {
			if err := op.hashPassword(ctx); err != nil {
				return Verified{}, err
			}
		}
	}
	var out Verified
	e := &f.settings.Email
	op.notify = canNotify(ctx, f, p.Type == typeEmailChange && e.Notify.EmailChanged || p.Type == "phone_change" &&
		(e.Notify.PhoneChanged || e.Notify.IdentityLinked))
	redeem := func() error {
		return f.commit(ctx, func(tx *tx) (err error) {
			op.found = false
			out, err = op.redeem(ctx, tx, pf)
			if errors.Is(err, store.ErrNotFound) {
				tx.refuse(pf.missed)
				return op.recordMiss(ctx, tx, pf) // a miss counts, so it is committed
			}
			return err
		})
	}
	if err := op.prepared(ctx, redeem); err != nil {
		return Verified{}, failure("verify", addressError(err))
	}
	if out.Half || out.Code != "" {
		return out, nil
	}
	enforceSessionLimit(ctx, f, out.User.ID)
	g, err := grantNew(ctx, f, out.User, &op.open)
	if err != nil {
		return Verified{}, err
	}
	g.Type = out.Type
	out.Grant = &g
	return out, nil
}

// prepared redeems, and does so again after what has to be done outside of the transaction.
func (op *verifyOp) prepared(ctx context.Context, redeem func() error) error {
	err := redeem()
	if errors.Is(err, errPasswordNotHashed) { // it was sent since the look-up
		if err = op.hashPassword(ctx); err == nil {
			err = redeem()
		}
	}
	if errors.Is(err, errNewUser) {
		u := op.owner.user(&op.f, op.owner.newID(), true, nil)
		if err = op.owner.checkCreation(ctx, &op.f, u); err == nil {
			err = redeem()
		}
	}
	if errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) {
		op.displace = true // an account that never proved the address gives way
		err = redeem()
	}
	return err
}

// addressError returns the refusal for an address that was taken between the request for it and its proof.
func addressError(err error) error {
	switch {
	case errors.Is(err, store.ErrEmailTaken):
		return errEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return errPhoneExists
	}
	return err
}

var errPhoneExists = unprocessable(CodePhoneExists, "A user with this phone number has already been registered")

var errEmailExists = unprocessable(CodeEmailExists, "A user with this email address has already been registered")

// verifyOp is one call of Verify.
type verifyOp struct {
	f      flow
	p      Verify
	hash   string // of p.Password
	notify bool   // may be written
	open   sessionDraft
	// displace: an unconfirmed account has the address that is proven.
	displace bool
	// found: the token exists, whatever became of it.
	found bool
	// owner gets a new account with the address, which another account has without a proof; nil: not asked for yet.
	owner *signupCandidate
}

// take consumes the token. ErrNotFound: there is none. The Limit is what the digits were taken from.
func (op *verifyOp) take(ctx context.Context, tx *tx, pf proof) (t store.Token, try store.Limit, err error) {
	switch {
	case pf.digits != "":
		code, test := op.f.settings.Phone.testCode(pf.address, op.f.now)
		t, try, err = tx.RedeemDigits(ctx, op.typedDigits(pf))
		err = tooManyCodes(err)
		if test && errors.Is(err, store.ErrNotFound) &&
			subtle.ConstantTimeCompare([]byte(code), []byte(pf.digits)) == 1 {
			t, err = op.testToken(ctx, tx, pf)
		}
	case pf.link == nil:
		err = store.ErrNotFound
	default:
		t, err = tx.RedeemLink(ctx, pf.link, pf.kinds, op.f.now)
	}
	return t, try, err
}

// redeem consumes the token, and does what it was for. ErrNotFound: there is none.
func (op *verifyOp) redeem(ctx context.Context, tx *tx, pf proof) (Verified, error) {
	t, try, err := op.take(ctx, tx, pf)
	if err != nil {
		return Verified{}, err
	}
	op.found = true
	if pf.link != nil && pf.pkce != (t.Flow != uuid.Nil) {
		return Verified{}, pf.missed // not the text that was sent; the transaction is undone, and the link stays
	}
	if op.p.Password != "" && op.hash == "" {
		return Verified{}, errPasswordNotHashed
	}
	u, err := tx.LockUser(ctx, t.User)
	if err != nil {
		return Verified{}, err
	}
	w := verifyTx{f: &op.f, op: op, b: tx.Batch(), u: u, t: t, patch: store.UserPatch{Now: op.f.now}}
	if try.Key != nil { // the digits were right
		w.b.Take(try, -1, op.f.now)
	}
	if !isChange(t.Kind) && op.f.settings.leaves(u, t.Address) {
		if err := w.moveOut(); err != nil {
			return Verified{}, err
		}
	}
	if w.u.BannedUntil.After(op.f.now) {
		return Verified{}, denied(CodeUserBanned, "User is banned")
	}
	w.patch.ID = w.u.ID
	out := Verified{Type: op.typeOf(t, w.u, pf)}
	if out.Half, err = w.apply(); err != nil {
		return Verified{}, err
	}
	if op.displace {
		if err := w.displaceUnproven(ctx, tx); err != nil {
			return Verified{}, err
		}
	}
	if op.p.Link && pf.pkce && !out.Half {
		if out.Code, err = w.issueCode(ctx, tx); err != nil {
			return Verified{}, err
		}
	} else if !out.Half {
		op.open = newSession(&op.f, w.u.ID, methodOTP)
		if _, test := op.f.settings.Phone.testCode(pf.address, op.f.now); test { // its code is in a file
			op.open.row.Place = nil
		}
		if isChange(t.Kind) { // it proves an address of the client's choice, not the user's identity: see needsCurrent
			op.open.row.AMR = mustJSON([]token.AMR{{Method: methodOTP, Timestamp: op.f.now.Unix(), Provider: out.Type}})
		}
		w.patch.LastSignInAt = &op.f.now
	}
	w.fill(out)
	w.b.User(&out.User, w.u.ID)
	return out, w.b.Send(ctx)
}

// typeOf returns the type that the answer names. A link that proves the address alone, of a user who is left without a
// password, is a recovery for client libraries: the user is to choose one.
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

// errNewUser: the address leaves the account that has it, and a hook is to allow the new one.
var errNewUser = errors.New("account: verify: the address gets a new account")

// moveOut takes the address from the account, and goes on with a new one, as if none had it.
func (w *verifyTx) moveOut() error {
	f, op, provider := w.f, w.op, "email"
	if !isEmail(w.t.Address) {
		provider = "phone"
	}
	if f.settings.DisableSignup {
		return errSignupDisabled
	}
	if op.owner == nil {
		op.owner = &signupCandidate{aud: w.u.Aud, provider: provider, address: w.t.Address}
		return errNewUser
	}
	u := op.owner.user(f, op.owner.newID(), true, nil)
	u.EmailUnproven, u.PhoneUnproven = false, false
	action := removeAddress(w.b, w.u, provider, f.now)
	w.b.InsertUser(u)
	w.b.InsertIdentity(u.Identities[0])
	enqueueCreatedHook(f, w.b, true, u.ID)
	w.b.Audit(f.audit(action, u.ID, uuid.Nil, "user_id", w.u.ID.String(), "reason", "address_proven"))
	w.b.Audit(f.audit(store.ActionUserSignedUp, u.ID, uuid.Nil, "provider", provider))
	w.u = u
	return nil
}

// typedDigits returns the digits of a proof. Those of a test number are not counted.
func (op *verifyOp) typedDigits(pf proof) store.Digits {
	d := store.Digits{Aud: op.f.aud(), Address: pf.address, Kinds: pf.kinds,
		MACs: digitMACs(&op.f, pf.kinds, pf.address, pf.digits), Now: op.f.now}
	if _, test := op.f.settings.Phone.testCode(pf.address, op.f.now); !test {
		d.MaxMisses = maxMisses
		d.Tries, d.Place = codeTries(&op.f, "codes", d.Aud, pf.address)
	}
	return d
}

// isPending reports whether the token exists that the proof asks for, so that nothing is hashed for invented tokens.
// Redeeming decides, and counts a miss.
func (op *verifyOp) isPending(ctx context.Context, pf proof) (bool, error) {
	switch {
	case pf.digits != "":
		return op.f.core.db.DigitsWait(ctx, op.typedDigits(pf))
	case pf.link != nil:
		return op.f.core.db.LinkWaits(ctx, pf.link, pf.kinds, op.f.now)
	}
	return false, nil
}

// errPasswordNotHashed: a token was found after all, and the password that came with it is not hashed yet.
var errPasswordNotHashed = errors.New("account: verify: the password is not hashed")

func (op *verifyOp) hashPassword(ctx context.Context) (err error) {
	if op.hash, err = op.f.core.passwords.Hash(ctx, op.p.Password); err != nil {
		return failure("hash password", err)
	}
	return nil
}

// testToken returns a token for the code of a test number that was not requested, or was used before: the code is valid
// at any time for the user with that number.
func (op *verifyOp) testToken(ctx context.Context, tx *tx, pf proof) (store.Token, error) {
	if !slices.Contains(pf.kinds, store.KindSMS) {
		return store.Token{}, store.ErrNotFound // a change of number waits with its token, for a year
	}
	var u store.User
	b := tx.Batch()
	b.UserByPhone(&u, op.f.aud(), pf.address)
	if err := b.Send(ctx); err != nil {
		return store.Token{}, err
	}
	if u.ID == uuid.Nil {
		return store.Token{}, store.ErrNotFound
	}
	return store.Token{User: u.ID, Kind: store.KindSMS, Address: pf.address, CreatedAt: op.f.now, ExpiresAt: op.f.now},
		nil
}

// recordMiss records a failed verification: at most once a minute for an address, and for all unknown links together.
func (op *verifyOp) recordMiss(ctx context.Context, tx *tx, pf proof) error {
	typ := op.p.Type
	if pf.kinds == nil { // anything may stand there
		typ = ""
	}
	b := tx.Batch()
	op.f.auditSeldom(b, "verify note", pf.address,
		op.f.audit(store.ActionVerificationFailed, uuid.Nil, uuid.Nil, "type", typ))
	return b.Send(ctx)
}

// issueCode sets the code of the PKCE flow. A link whose flow is gone is refused, and stays valid.
func (w *verifyTx) issueCode(ctx context.Context, tx *tx) (string, error) {
	var f store.Flow
	b := tx.Batch()
	b.Flow(&f, w.t.Flow)
	if err := b.Send(ctx); err != nil {
		return "", err
	}
	if f.ID == uuid.Nil || !w.f.now.Before(f.ExpiresAt) || !f.IssuedAt.IsZero() {
		return "", invalid(CodeFlowStateNotFound, "No associated flow state found.")
	}
	text, hash := token.NewLinkToken()
	w.codeHash = hash[:]
	return text, nil
}

package factor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

const (
	// codeCount is how many recovery codes a user gets at once.
	codeCount = 10
	// codeBytes is how many random bytes make a code; it has 16 characters. Such a code cannot be guessed, so a MAC
	// suffices to protect it in the database.
	codeBytes = 10
)

// crockford is Douglas Crockford's base32, which has no letters that look like digits or like each other.
var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// misread replaces characters that are easily confused with a character of Crockford's base32, and removes the hyphens
// between groups.
var misread = strings.NewReplacer("-", "", "i", "1", "l", "1", "o", "0")

// normalCode returns the original spelling of a recovery code that a user has typed.
func normalCode(text string) string {
	return misread.Replace(strings.ToLower(strings.Join(strings.Fields(text), "")))
}

// RecoveryCodes are a user's recovery codes. Codes is set only when they have just been made, since the codes are shown
// only once.
type RecoveryCodes struct {
	Factor store.Factor
	store.RecoveryCodes
	Codes []string
}

var (
	errNoCodes    = refusal.Missing(refusal.CodeFactorNotFound, "The user has not enrolled recovery codes")
	errCodesExist = refusal.Unprocessable(refusal.CodeVerifiedFactorExists,
		"Recovery codes are already enrolled for this user, use regenerate to rotate them")
	errNoOtherFactor = refusal.Unprocessable(refusal.CodeRecoverySoleFactor,
		"At least one other verified factor is required to generate recovery codes")
)

// codesOf returns the factor that stands for a user's recovery codes.
func codesOf(u store.User) (store.Factor, error) {
	i := slices.IndexFunc(u.Factors, func(o store.Factor) bool { return o.Kind == store.FactorRecoveryCodes })
	if i < 0 {
		return store.Factor{}, errNoCodes
	}
	return u.Factors[i], nil
}

// CheckRecoveryCodesEnroll returns a refusal if recovery codes may not be generated.
func (a *Factors) CheckRecoveryCodesEnroll() error {
	return checkEnroll(a.core.Live(), store.FactorRecoveryCodes)
}

// CheckRecoveryCodesVerify returns a refusal if recovery codes may not be used.
func (a *Factors) CheckRecoveryCodesVerify() error {
	return checkVerify(a.core.Live(), store.FactorRecoveryCodes)
}

// RecoveryCodes returns how many recovery codes the user has.
func (a *Factors) RecoveryCodes(ctx context.Context, principal flow.Principal) (out RecoveryCodes, err error) {
	if out.Factor, err = codesOf(principal.User); err != nil {
		return out, err
	}
	b := a.core.DB.Batch()
	b.RecoveryCodes(&out.RecoveryCodes, out.Factor.ID)
	return out, refusal.Failure("count recovery codes", b.Send(ctx))
}

// GenerateRecoveryCodes makes recovery codes for a user who has none. If name is empty, the factor gets the default
// name.
func (a *Factors) GenerateRecoveryCodes(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	name string) (RecoveryCodes, error) {
	f := a.core.Begin(req)
	out := newCodes(store.Factor{ID: uuid.New(), Kind: store.FactorRecoveryCodes, CreatedAt: f.Now, UpdatedAt: f.Now,
		FriendlyName: cmp.Or(flow.StorableText(name), "Recovery codes")})
	check := func(u store.User, v store.Session) ([]uuid.UUID, error) { return checkGenerate(f, out.Factor, u, v) }
	if _, err := check(principal.User, principal.Session); err != nil {
		return RecoveryCodes{}, err
	}
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.FactorEnrolled)
	err := flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) error {
		stale, err := check(u, v)
		if err != nil {
			return err
		}
		b := tx.Batch()
		if len(stale) > 0 {
			b.DeleteFactors(u.ID, stale...)
		}
		b.InsertFactor(u.ID, out.Factor, nil)
		b.VerifyFactor(out.Factor.ID, uuid.Nil, false, f.Now)
		storeCodes(f, b, store.ActionRecoveryCodesGenerated, principal, out)
		if notify {
			flow.NotifyUser(f, b, mail.FactorEnrolled, u, mail.Vars{FactorType: string(out.Factor.Kind)})
		}
		return b.Send(ctx)
	})
	return out, refusal.Failure("generate recovery codes", err)
}

// RegenerateRecoveryCodes replaces all of the user's recovery codes by new ones.
func (a *Factors) RegenerateRecoveryCodes(ctx context.Context, req flow.RequestInfo,
	principal flow.Principal) (out RecoveryCodes, err error) {
	f := a.core.Begin(req)
	if _, err := ownCodes(principal.User, principal.Session, "regenerate"); err != nil {
		return out, err
	}
	err = flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) error {
		factor, err := ownCodes(u, v, "regenerate")
		if err != nil {
			return err
		}
		out = newCodes(factor)
		b := tx.Batch()
		storeCodes(f, b, store.ActionRecoveryCodesRegenerated, principal, out)
		return b.Send(ctx)
	})
	return out, refusal.Failure("regenerate recovery codes", err)
}

// DeleteRecoveryCodes removes the user's recovery codes. Sessions that reached aal2 by a recovery code go back to aal1.
func (a *Factors) DeleteRecoveryCodes(ctx context.Context, req flow.RequestInfo,
	principal flow.Principal) (factor store.Factor, err error) {
	f := a.core.Begin(req)
	if _, err = ownCodes(principal.User, principal.Session, "delete"); err != nil {
		return factor, err
	}
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.FactorUnenrolled)
	err = flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) (err error) {
		if factor, err = ownCodes(u, v, "delete"); err != nil {
			return err
		}
		b := tx.Batch()
		removeFactor(f, b, u, factor, notify)
		b.Audit(f.Audit(store.ActionRecoveryCodesDeleted, u.ID, v.ID, "factor_id", factor.ID.String()))
		return b.Send(ctx)
	})
	return factor, refusal.Failure("delete recovery codes", err)
}

// checkGenerate checks whether a user may get recovery codes, and returns the abandoned factors that are deleted first.
func checkGenerate(f *flow.Flow, factor store.Factor, u store.User, v store.Session) ([]uuid.UUID, error) {
	if v.AAL < 2 {
		return nil, errCodesLow("generate")
	}
	if _, err := codesOf(u); err == nil {
		return nil, errCodesExist
	}
	if err := checkFactorText(factor.FriendlyName, ""); err != nil {
		return nil, err
	}
	stale, err := makeRoom(f.Settings, factor, u, v, f.Now)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(u.Factors, func(o store.Factor) bool { return isUsable(f.Settings, o) }) {
		return nil, errNoOtherFactor
	}
	return stale, nil
}

// ownCodes returns the user's recovery codes for a change that needs aal2. doing names the change in the refusal.
func ownCodes(u store.User, v store.Session, doing string) (store.Factor, error) {
	if v.AAL < 2 {
		return store.Factor{}, errCodesLow(doing)
	}
	return codesOf(u)
}

func errCodesLow(doing string) error {
	return refusal.Denied(refusal.CodeInsufficientAAL, "AAL2 required to "+doing+" recovery codes")
}

// newCodes makes new recovery codes for a factor.
func newCodes(factor store.Factor) RecoveryCodes {
	out := RecoveryCodes{Factor: factor, RecoveryCodes: store.RecoveryCodes{Total: codeCount, Remaining: codeCount}}
	for range codeCount {
		random := make([]byte, codeBytes)
		rand.Read(random) // never fails
		out.Codes = append(out.Codes, crockford.EncodeToString(random))
	}
	return out
}

// storeCodes adds the statements that replace the recovery codes of a factor and reset the user's tries.
func storeCodes(f *flow.Flow, b *flow.Batch, action store.Action, by flow.Principal, out RecoveryCodes) {
	macs := make([][]byte, len(out.Codes))
	for i, code := range out.Codes {
		macs[i] = f.Core.Root.MAC(secret.RecoveryCodes, out.Factor.ID.String(), code)
	}
	b.ReplaceRecoveryCodes(out.Factor.ID, macs)
	b.ForgetLimits(codeTries(f, by.User.ID).Key)
	b.Audit(f.Audit(action, by.User.ID, by.Session.ID, "factor_id", out.Factor.ID.String(), "count",
		strconv.Itoa(codeCount)))
}

// codeTries returns the bucket of wrong recovery codes of a user. One try is refilled every 3 minutes.
func codeTries(f *flow.Flow, user uuid.UUID) store.Limit {
	return store.Limit{Key: f.LimitKey("recovery codes", user.String()), Size: 5, Refill: 15 * time.Minute}
}

var errWrongCode = refusal.Unprocessable(refusal.CodeFactorVerificationFailed, "Invalid recovery code entered")

// VerifyRecoveryCode uses up one of the user's recovery codes, and raises the session as VerifyFactor does.
func (a *Factors) VerifyRecoveryCode(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	code string) (flow.Grant, error) {
	f := a.core.Begin(req)
	op := &verifyFactorOp{f: *f, principal: principal, code: normalCode(code)}
	if op.code == "" {
		return flow.Grant{}, refusal.NotValid("Code needs to be non-empty")
	}
	if principal.Session.ID == uuid.Nil {
		return flow.Grant{}, flow.SessionNotFound()
	}
	remaining := 0
	op.find = func(u store.User) (store.Factor, error) {
		factor, _ := codesOf(u) // if the user has no recovery codes, every code is wrong
		if op.passed != uuid.Nil && op.passed != factor.ID {
			return factor, errWrongCode // the codes were removed while a hook was called
		}
		return factor, nil
	}
	op.judge = func(ctx context.Context, tx *flow.Tx, _ store.User, _ store.Session) error {
		return op.judgeRecoveryCode(ctx, tx, &remaining)
	}
	op.done = func(b *flow.Batch) {
		b.ForgetLimits(codeTries(f, principal.User.ID).Key)
		b.Audit(f.Audit(store.ActionRecoveryCodesVerified, principal.User.ID, principal.Session.ID, "factor_id",
			op.factor.ID.String(), "remaining", strconv.Itoa(remaining)))
	}
	return op.grant(ctx)
}

// judgeRecoveryCode uses up the recovery code if it is right. If it is wrong, judgeRecoveryCode counts it against the
// limit of wrong codes. remaining gets the number of codes that are left.
func (op *verifyFactorOp) judgeRecoveryCode(ctx context.Context, tx *flow.Tx, remaining *int) error {
	tries := codeTries(&op.f, op.principal.User.ID)
	var levels []store.Level
	if err := tx.Run(ctx, func(b *flow.Batch) { b.Levels(&levels, tries) }); err != nil {
		return err
	}
	if wait := tries.Wait(levels[0], op.f.Now, 1); wait > 0 {
		return refusal.Limited(refusal.CodeRecoveryLocked, "Too many failed verification attempts, try again later", wait)
	}
	right := false
	b := tx.Batch()
	b.UseRecoveryCode(&right, remaining, op.factor.ID,
		op.f.Core.Root.MACs(secret.RecoveryCodes, op.factor.ID.String(), op.code), op.f.Now)
	if err := b.Send(ctx); err != nil {
		return err
	}
	op.judged = op.factor.ID != uuid.Nil
	if right {
		return nil
	}
	tx.Refuse(errWrongCode)
	pairs := []string{"factor_type", string(store.FactorRecoveryCodes)}
	if op.judged {
		pairs = append(pairs, "factor_id", op.factor.ID.String())
	}
	b = tx.Batch()
	b.Take(tries, 1, op.f.Now)
	b.Audit(op.f.Audit(store.ActionVerificationFailed, op.principal.User.ID, op.principal.Session.ID, pairs...))
	return b.Send(ctx)
}

package factor

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

var errWrongCode = refusal.Unprocessable(refusal.CodeFactorVerificationFailed, "Invalid recovery code entered")

// VerifyRecoveryCode uses up one of the user's recovery codes and raises the session like VerifyFactor.
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
		factor, _ := codesOf(u) // if the user has no codes, every code is wrong
		if op.passed != uuid.Nil && op.passed != factor.ID {
			return factor, errWrongCode // removed while a hook was called
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

// judgeRecoveryCode uses up the code if it is right, and takes a try if it is wrong.
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

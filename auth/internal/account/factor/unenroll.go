package factor

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// UnenrollFactor removes one of the user's own factors. Sessions that reached aal2 by it go back to aal1. To remove a
// verified factor, the session must be at aal2.
func (a *Factors) UnenrollFactor(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	id uuid.UUID) error {
	f := a.core.Begin(req)
	factor, err := factorOf(principal.User, id)
	if err != nil {
		return err
	}
	if factor.Kind == store.FactorRecoveryCodes {
		return errCodesElsewhere
	}
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.FactorUnenrolled && factor.Verified())
	err = flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) (err error) {
		if factor, err = factorOf(u, id); err != nil {
			return err
		}
		if factor.Verified() && v.AAL < 2 {
			return refusal.Unprocessable(refusal.CodeInsufficientAAL, "AAL2 required to unenroll verified factor")
		}
		if leavesCodesAlone(f.Settings, u, factor) {
			return errSoleFactor
		}
		b := tx.Batch()
		removeFactor(f, b, u, factor, notify)
		b.Audit(f.Audit(store.ActionFactorUnenrolled, u.ID, v.ID, "factor_id", factor.ID.String(), "factor_type",
			string(factor.Kind)))
		return b.Send(ctx)
	})
	return refusal.Failure("unenroll a factor", err)
}

var (
	errCodesElsewhere = refusal.Unprocessable(refusal.CodeValidationFailed,
		"Recovery codes cannot be unenrolled with this endpoint, use DELETE /factors/recovery-codes")
	errSoleFactor = refusal.Unprocessable(refusal.CodeRecoverySoleFactor,
		"Recovery codes cannot be the only verified factor. Please enroll another factor before unenrolling this one or "+
			"delete your recovery codes.")
)

// removeFactor adds the statements that remove a factor and lower the sessions that reached aal2 by it.
func removeFactor(f *flow.Flow, b *flow.Batch, u store.User, factor store.Factor, notify bool) {
	b.LowerSessions(u.ID, factor.ID, factorMethod(factor.Kind))
	b.DeleteFactors(u.ID, factor.ID)
	if notify && factor.Verified() {
		flow.NotifyUser(f, b, mail.FactorUnenrolled, u, mail.Vars{FactorType: string(factor.Kind)})
	}
}

// AdminFactors returns a user's factors, oldest first.
func (a *Factors) AdminFactors(ctx context.Context, user uuid.UUID) ([]store.Factor, error) {
	u, err := a.core.UserOf(ctx, user)
	return u.Factors, err
}

// AdminDeleteFactor removes a factor from a user who has lost it, and also the recovery codes if they would be the only
// factor left. The user is notified by mail.
func (a *Factors) AdminDeleteFactor(ctx context.Context, req flow.RequestInfo, by flow.Actor,
	user, id uuid.UUID) (store.Factor, error) {
	f := a.core.Begin(req)
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.FactorUnenrolled)
	var factor store.Factor
	err := onFactor(ctx, f, user, id, func(tx *flow.Tx, u store.User, found store.Factor) error {
		factor = found
		gone := []store.Factor{factor}
		if codes, _ := codesOf(u); leavesCodesAlone(f.Settings, u, factor) {
			gone = append(gone, codes)
		}
		b := tx.Batch()
		for _, one := range gone {
			removeFactor(f, b, u, one, notify)
			b.Audit(by.Audit(f, store.ActionFactorDeleted, "user_id", u.ID.String(), "factor_id", one.ID.String()))
		}
		return b.Send(ctx)
	})
	return factor, refusal.Failure("delete a factor", err)
}

// FactorUpdate is an administrator's change of a factor. A field that is "" changes nothing.
type FactorUpdate struct {
	Factor       uuid.UUID `json:"-"`
	FriendlyName string    `json:"friendly_name"`
	Phone        string    `json:"phone"`
}

// AdminUpdateFactor changes the name of a factor or the number of a phone factor. Codes that were sent to the old
// number become void.
func (a *Factors) AdminUpdateFactor(ctx context.Context, req flow.RequestInfo, by flow.Actor, user uuid.UUID,
	p FactorUpdate) (store.Factor, error) {
	f := a.core.Begin(req)
	var factor store.Factor
	err := onFactor(ctx, f, user, p.Factor, func(tx *flow.Tx, u store.User, found store.Factor) error {
		factor = found
		if err := checkFactorText(p.FriendlyName, ""); err != nil {
			return err
		}
		if p.FriendlyName != "" {
			factor.FriendlyName = flow.StorableText(p.FriendlyName)
		}
		b := tx.Batch()
		if p.Phone != "" && factor.Kind == store.FactorPhone {
			number, err := flow.ParsePhone(p.Phone)
			if err != nil {
				return err
			}
			if number != factor.Phone {
				factor.Phone = number
				b.DeleteChallenges(u.ID)
			}
		}
		factor.UpdatedAt = f.Now
		b.RenameFactor(factor, f.Now)
		b.Audit(by.Audit(f, store.ActionFactorUpdated, "user_id", u.ID.String(), "factor_id", factor.ID.String()))
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrFactorName):
		return factor, errFactorName(factor.FriendlyName)
	case errors.Is(err, store.ErrFactorPhone):
		return factor, refusal.Unprocessable(refusal.CodeVerifiedFactorExists,
			"The user has another phone factor with this number")
	}
	return factor, refusal.Failure("update a factor", err)
}

// onFactor locks a user and runs do in a transaction, with the user and one of the user's factors.
func onFactor(ctx context.Context, f *flow.Flow, user, id uuid.UUID, do func(*flow.Tx, store.User,
	store.Factor) error) error {
	return flow.OnUser(ctx, f, user, func(tx *flow.Tx, u store.User) error {
		if err := tx.Run(ctx, func(b *flow.Batch) { b.Factors(&u.Factors, u.ID) }); err != nil {
			return err
		}
		found, err := factorOf(u, id)
		if err != nil {
			return err
		}
		return do(tx, u, found)
	})
}

package account

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// UnenrollFactor takes one of the caller's factors from him, and from his sessions what it gave them. A verified one
// wants a session of aal2.
func (a *Accounts) UnenrollFactor(ctx context.Context, c Client, caller Caller, id uuid.UUID) error {
	s, now := a.live.Load(), a.now()
	factor, err := factorOf(caller.User, id)
	if err != nil {
		return err
	}
	notices := a.mayNotify(ctx, s, s.Email.NotifyFactorUnenrolled && factor.Verified())
	told := 0
	err = a.db.InTx(ctx, func(tx *store.Tx) error {
		told = 0
		u, v, err := a.lockCaller(ctx, tx, s, caller, now)
		if err != nil {
			return err
		}
		if factor, err = factorOf(u, id); err != nil {
			return err
		}
		if factor.Verified() && v.AAL < 2 {
			return unprocessable(CodeInsufficientAAL, "AAL2 required to unenroll verified factor")
		}
		b := tx.Batch()
		b.LowerSessions(u.ID, factor.ID, factorMethod(factor.Kind))
		b.DeleteFactors(u.ID, factor.ID)
		if m, ok := a.factorNotice(s, c, notices && factor.Verified(), mail.FactorUnenrolled, u, factor, now); ok {
			b.InsertMessage(m)
			told = 1
		}
		b.Audit(store.Audit{At: now, Action: store.ActionFactorUnenrolled, Actor: u.ID, Session: v.ID, IP: c.IP,
			Traits: traits("factor_id", factor.ID.String(), "factor_type", string(factor.Kind))})
		return b.Send(ctx)
	})
	if err != nil {
		return failure("unenroll a factor", err)
	}
	a.wake()
	a.notified(ctx, s, told)
	return nil
}

// AdminFactors are a user's factors by age.
func (a *Accounts) AdminFactors(ctx context.Context, user uuid.UUID) ([]store.Factor, error) {
	u, err := a.AdminUser(ctx, user)
	return u.Factors, err
}

// AdminDeleteFactor takes a factor from a user who has lost it. He is told.
func (a *Accounts) AdminDeleteFactor(ctx context.Context, c Client, by Actor, user, id uuid.UUID) (store.Factor, error) {
	s, now := a.live.Load(), a.now()
	notices := a.mayNotify(ctx, s, s.Email.NotifyFactorUnenrolled)
	var factor store.Factor
	told := 0
	err := a.onFactor(ctx, user, id, func(tx *store.Tx, u store.User, found store.Factor) error {
		factor, told = found, 0
		b := tx.Batch()
		b.LowerSessions(u.ID, factor.ID, factorMethod(factor.Kind))
		b.DeleteFactors(u.ID, factor.ID)
		if m, ok := a.factorNotice(s, c, notices && factor.Verified(), mail.FactorUnenrolled, u, factor, now); ok {
			b.InsertMessage(m)
			told = 1
		}
		b.Audit(by.audit(c, store.ActionFactorDeleted, now, "user_id", u.ID.String(), "factor_id", factor.ID.String()))
		return b.Send(ctx)
	})
	if err != nil {
		return factor, failure("delete a factor", err)
	}
	a.wake()
	a.notified(ctx, s, told)
	return factor, nil
}

// AdminUpdateFactor gives a factor another name or, if it is a phone, number; "" keeps. Codes that were sent
// to another number are void.
func (a *Accounts) AdminUpdateFactor(ctx context.Context, c Client, by Actor, user, id uuid.UUID, name, phone string) (store.Factor, error) {
	now := a.now()
	var factor store.Factor
	err := a.onFactor(ctx, user, id, func(tx *store.Tx, u store.User, found store.Factor) error {
		factor = found
		if err := goodFactorText(name, ""); err != nil {
			return err
		}
		if name != "" {
			factor.FriendlyName = plain(name)
		}
		b := tx.Batch()
		if phone != "" && factor.Kind == store.FactorPhone {
			number, err := goodPhone(phone)
			if err != nil {
				return err
			}
			if number != factor.Phone {
				factor.Phone = number
				b.DeleteChallenges(u.ID)
			}
		}
		factor.UpdatedAt = now
		b.RenameFactor(factor, now)
		b.Audit(by.audit(c, store.ActionFactorUpdated, now, "user_id", u.ID.String(), "factor_id", factor.ID.String()))
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrFactorName):
		return factor, errFactorName(factor.FriendlyName)
	case errors.Is(err, store.ErrFactorPhone):
		return factor, unprocessable(CodeVerifiedFactorExists, "The user has another phone factor with this number")
	}
	return factor, failure("update a factor", err)
}

// onFactor runs f with a user locked and one of his factors.
func (a *Accounts) onFactor(ctx context.Context, user, id uuid.UUID, do func(*store.Tx, store.User, store.Factor) error) error {
	return a.db.InTx(ctx, func(tx *store.Tx) error {
		u, err := tx.LockUser(ctx, user)
		if errors.Is(err, store.ErrNotFound) {
			return errNoUser
		}
		if err != nil {
			return err
		}
		b := tx.Batch()
		b.Factors(&u.Factors, u.ID)
		if err := b.Send(ctx); err != nil {
			return err
		}
		found, err := factorOf(u, id)
		if err != nil {
			return err
		}
		return do(tx, u, found)
	})
}

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
func (a *Accounts) UnenrollFactor(ctx context.Context, c Client, caller Caller, factor uuid.UUID) error {
	s, now := a.live.Load(), a.now()
	f, err := factorOf(caller.User, factor)
	if err != nil {
		return err
	}
	notices := a.mayNotify(ctx, s, s.Email.NotifyFactorUnenrolled && f.Verified())
	told := 0
	err = a.db.InTx(ctx, func(tx *store.Tx) error {
		told = 0
		u, v, err := a.lockCaller(ctx, tx, s, caller, now)
		if err != nil {
			return err
		}
		if f, err = factorOf(u, factor); err != nil {
			return err
		}
		if f.Verified() && v.AAL < 2 {
			return unprocessable(CodeInsufficientAAL, "AAL2 required to unenroll verified factor")
		}
		b := tx.Batch()
		b.LowerSessions(u.ID, f.ID, factorMethod(f.Kind))
		b.DeleteFactors(u.ID, f.ID)
		if m, ok := a.factorNotice(s, c, notices && f.Verified(), mail.FactorUnenrolled, u, f, now); ok {
			b.InsertMessage(m)
			told = 1
		}
		b.Audit(store.Audit{At: now, Action: store.ActionFactorUnenrolled, Actor: u.ID, Session: v.ID, IP: c.IP,
			Traits: traits("factor_id", f.ID.String(), "factor_type", string(f.Kind))})
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
func (a *Accounts) AdminDeleteFactor(ctx context.Context, c Client, by Actor, user, factor uuid.UUID) (store.Factor, error) {
	s, now := a.live.Load(), a.now()
	notices := a.mayNotify(ctx, s, s.Email.NotifyFactorUnenrolled)
	var f store.Factor
	told := 0
	err := a.onFactor(ctx, user, factor, func(tx *store.Tx, u store.User, found store.Factor) error {
		f, told = found, 0
		b := tx.Batch()
		b.LowerSessions(u.ID, f.ID, factorMethod(f.Kind))
		b.DeleteFactors(u.ID, f.ID)
		if m, ok := a.factorNotice(s, c, notices && f.Verified(), mail.FactorUnenrolled, u, f, now); ok {
			b.InsertMessage(m)
			told = 1
		}
		b.Audit(by.audit(c, store.ActionFactorDeleted, now, "user_id", u.ID.String(), "factor_id", f.ID.String()))
		return b.Send(ctx)
	})
	if err != nil {
		return f, failure("delete a factor", err)
	}
	a.wake()
	a.notified(ctx, s, told)
	return f, nil
}

// AdminUpdateFactor gives a factor another name or, if it is a phone, number; "" keeps. Codes that were sent
// to another number are void.
func (a *Accounts) AdminUpdateFactor(ctx context.Context, c Client, by Actor, user, factor uuid.UUID, name, phone string) (store.Factor, error) {
	now := a.now()
	var f store.Factor
	err := a.onFactor(ctx, user, factor, func(tx *store.Tx, u store.User, found store.Factor) error {
		f = found
		if err := goodFactorText(name, ""); err != nil {
			return err
		}
		if name != "" {
			f.FriendlyName = plain(name)
		}
		b := tx.Batch()
		if phone != "" && f.Kind == store.FactorPhone {
			number, err := goodPhone(phone)
			if err != nil {
				return err
			}
			if number != f.Phone {
				f.Phone = number
				b.DeleteChallenges(u.ID)
			}
		}
		f.UpdatedAt = now
		b.RenameFactor(f, now)
		b.Audit(by.audit(c, store.ActionFactorUpdated, now, "user_id", u.ID.String(), "factor_id", f.ID.String()))
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrFactorName):
		return f, errFactorName(f.FriendlyName)
	case errors.Is(err, store.ErrFactorPhone):
		return f, unprocessable(CodeVerifiedFactorExists, "The user has another phone factor with this number")
	}
	return f, failure("update a factor", err)
}

// onFactor runs f with a user locked and one of his factors.
func (a *Accounts) onFactor(ctx context.Context, user, factor uuid.UUID, f func(*store.Tx, store.User, store.Factor) error) error {
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
		found, err := factorOf(u, factor)
		if err != nil {
			return err
		}
		return f(tx, u, found)
	})
}

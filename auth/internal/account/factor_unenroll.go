package account

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// UnenrollFactor removes one of the user's own factors, and from the user's sessions the level that it gave them.
// Removing a verified one needs a session of aal2.
func (a *Accounts) UnenrollFactor(ctx context.Context, req RequestInfo, principal Principal, id uuid.UUID) error {
	return unenrollFactor(ctx, a.begin(req), principal, id)
}

func unenrollFactor(ctx context.Context, f *flow, principal Principal, id uuid.UUID) error {
	factor, err := factorOf(principal.User, id)
	if err != nil {
		return err
	}
	notify := canNotify(ctx, f, f.settings.Email.Notify.FactorUnenrolled && factor.Verified())
	notified := 0
	err = f.inTx(ctx, func(tx *store.Tx) error {
		notified = 0
		u, v, err := lockPrincipal(ctx, f, tx, principal)
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
		if m, ok := factorNotification(f, notify && factor.Verified(), mail.FactorUnenrolled, u, factor); ok {
			b.InsertMessage(m)
			notified = 1
		}
		b.Audit(f.audit(store.ActionFactorUnenrolled, u.ID, v.ID, "factor_id", factor.ID.String(), "factor_type",
			string(factor.Kind)))
		return b.Send(ctx)
	})
	if err != nil {
		return failure("unenroll a factor", err)
	}
	f.core.wake()
	f.countNotifications(ctx, notified)
	return nil
}

// AdminFactors returns a user's factors by age.
func (a *Accounts) AdminFactors(ctx context.Context, user uuid.UUID) ([]store.Factor, error) {
	u, err := a.AdminUser(ctx, user)
	return u.Factors, err
}

// AdminDeleteFactor removes a factor from a user who has lost it. The user is notified.
func (a *Accounts) AdminDeleteFactor(ctx context.Context, req RequestInfo, by Actor,
	user, id uuid.UUID) (store.Factor, error) {
	return adminDeleteFactor(ctx, a.begin(req), by, user, id)
}

func adminDeleteFactor(ctx context.Context, f *flow, by Actor, user, id uuid.UUID) (store.Factor, error) {
	notify := canNotify(ctx, f, f.settings.Email.Notify.FactorUnenrolled)
	var factor store.Factor
	notified := 0
	err := onFactor(ctx, f, user, id, func(tx *store.Tx, u store.User, found store.Factor) error {
		factor, notified = found, 0
		b := tx.Batch()
		b.LowerSessions(u.ID, factor.ID, factorMethod(factor.Kind))
		b.DeleteFactors(u.ID, factor.ID)
		if m, ok := factorNotification(f, notify && factor.Verified(), mail.FactorUnenrolled, u, factor); ok {
			b.InsertMessage(m)
			notified = 1
		}
		b.Audit(by.audit(f, store.ActionFactorDeleted, "user_id", u.ID.String(), "factor_id", factor.ID.String()))
		return b.Send(ctx)
	})
	if err != nil {
		return factor, failure("delete a factor", err)
	}
	f.core.wake()
	f.countNotifications(ctx, notified)
	return factor, nil
}

// FactorUpdate is what an administrator changes of a factor; "" keeps.
type FactorUpdate struct {
	Factor              uuid.UUID
	FriendlyName, Phone string
}

// AdminUpdateFactor gives a factor another name or, if it is a phone, number; "" keeps. Codes that were sent to another
// number become void.
func (a *Accounts) AdminUpdateFactor(ctx context.Context, req RequestInfo, by Actor, user uuid.UUID,
	p FactorUpdate) (store.Factor, error) {
	return adminUpdateFactor(ctx, a.begin(req), by, user, p)
}

func adminUpdateFactor(ctx context.Context, f *flow, by Actor, user uuid.UUID, p FactorUpdate) (store.Factor, error) {
	var factor store.Factor
	err := onFactor(ctx, f, user, p.Factor, func(tx *store.Tx, u store.User, found store.Factor) error {
		factor = found
		if err := checkFactorText(p.FriendlyName, ""); err != nil {
			return err
		}
		if p.FriendlyName != "" {
			factor.FriendlyName = storableText(p.FriendlyName)
		}
		b := tx.Batch()
		if p.Phone != "" && factor.Kind == store.FactorPhone {
			number, err := parsePhone(p.Phone)
			if err != nil {
				return err
			}
			if number != factor.Phone {
				factor.Phone = number
				b.DeleteChallenges(u.ID)
			}
		}
		factor.UpdatedAt = f.now
		b.RenameFactor(factor, f.now)
		b.Audit(by.audit(f, store.ActionFactorUpdated, "user_id", u.ID.String(), "factor_id", factor.ID.String()))
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

// onFactor runs do with a user locked and one of the user's factors.
func onFactor(ctx context.Context, f *flow, user, id uuid.UUID, do func(*store.Tx, store.User,
	store.Factor) error) error {
	return f.inTx(ctx, func(tx *store.Tx) error {
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

// factorNotification returns the mail about a factor, if it is on and the user has an address.
func factorNotification(f *flow, on bool, kind mail.Kind, u store.User, factor store.Factor) (store.NewMessage, bool) {
	if !on || u.Email == "" {
		return store.NewMessage{}, false
	}
	m := notification(f, kind, u.Email,
		mail.Vars{Email: u.Email, FactorType: string(factor.Kind), Data: u.UserMetadata})
	m.User = u.ID
	return m, true
}

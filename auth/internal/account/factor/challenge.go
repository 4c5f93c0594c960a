package factor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// kindFactor is the kind, in the outbox, of an SMS with the code of a second factor.
const kindFactor = "mfa"

// ChallengeFactor creates a challenge for one of the user's own factors. For a phone factor it sends a code.
func (a *Factors) ChallengeFactor(ctx context.Context, req flow.RequestInfo, principal flow.Principal, id uuid.UUID,
	channel string) (store.Challenge, store.Factor, error) {
	f := a.core.Begin(req)
	factor, err := challengeable(f.Settings, principal, id)
	if err != nil {
		return store.Challenge{}, factor, err
	}
	ch := store.Challenge{ID: uuid.New(), Factor: factor.ID, IP: f.Req.TrustedIP, CreatedAt: f.Now,
		ExpiresAt: f.Now.Add(f.Settings.Factors.ChallengeLife)}
	var q *flow.Quota
	var m store.NewMessage
	if factor.Kind == store.FactorPhone {
		if q, err = factorQuota(ctx, f, &principal, factor, channel); err != nil {
			return ch, factor, err
		}
		if m, err = factorSMS(f, factor, &ch, channel, principal.User.UserMetadata); err != nil {
			return ch, factor, err
		}
	}
	b := f.Batch()
	if q != nil {
		q.Take(b, f.Now)
	}
	b.InsertChallenge(principal.User.ID, ch)
	b.Message(principal.User.ID, m)
	b.Audit(f.Audit(store.ActionChallengeCreated, principal.User.ID, principal.Session.ID, "factor_id",
		factor.ID.String(), "challenge_id", ch.ID.String()))
	err = f.Send(ctx, b)
	if q != nil {
		err = q.RefusalOf(err)
	}
	// The factor was deleted in the meantime.
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUserGone) {
		err = errNoFactor
	}
	return ch, factor, refusal.Failure("challenge a factor", err)
}

var errNoFactor = refusal.Missing(refusal.CodeFactorNotFound, "Factor not found")

// factorOf returns the user's factor with this ID. A factor of another user is answered like a factor that does not
// exist.
func factorOf(u store.User, id uuid.UUID) (store.Factor, error) {
	for _, factor := range u.Factors {
		if factor.ID == id {
			return factor, nil
		}
	}
	return store.Factor{}, errNoFactor
}

// challengeable returns the user's factor with this ID if it may be challenged. It refuses an unverified factor to a
// session that is below the level of the user's verified factor: another person may have added the unverified one.
func challengeable(s *flow.Settings, principal flow.Principal, id uuid.UUID) (store.Factor, error) {
	factor, err := factorOf(principal.User, id)
	if err != nil {
		return factor, err
	}
	if factor.Kind == store.FactorRecoveryCodes { // recovery codes are verified by routes of their own
		return factor, errFactorType
	}
	if err := checkVerify(s, factor.Kind); err != nil {
		return factor, err
	}
	return factor, checkChallenge(factor, principal.User, principal.Session)
}

// checkChallenge refuses to verify a factor for the first time in a session at aal1 if the user has a verified factor
// already.
func checkChallenge(factor store.Factor, u store.User, v store.Session) error {
	if !factor.Verified() && flow.IsBelowAAL2(u, v) {
		return errEnrollLow
	}
	return nil
}

// factorQuota returns the quota of the SMS with a challenge's code, or a refusal if the SMS cannot be sent now. Each
// factor has its own pause between two SMS; the budgets are shared by all SMS.
func factorQuota(ctx context.Context, f *flow.Flow, by *flow.Principal, factor store.Factor,
	channel string) (*flow.Quota, error) {
	if err := f.Settings.Phone.CheckChannel(channel); err != nil {
		return nil, err
	}
	if err := flow.CheckSMSSendable(f, "mfa", factor.Phone); err != nil {
		return nil, err
	}
	q := flow.BoundUser(f, flow.SMSQuota(f, "", factor.Phone), by)
	q.Pauses = nil
	q.Pause(f, f.Settings.Factors.PhoneInterval, "factor", factor.ID.String())
	return q, q.LookUp(ctx, f)
}

// factorSMS chooses the code of a phone factor's challenge, and returns the SMS with the code. A test number gets its
// fixed code and no SMS.
func factorSMS(f *flow.Flow, factor store.Factor, ch *store.Challenge, channel string,
	metadata json.RawMessage) (store.NewMessage, error) {
	code, test := f.Settings.Phone.TestCode(factor.Phone, ch.CreatedAt)
	if !test {
		var err error
		if code, err = token.NewCode(f.Settings.Factors.OTPLength); err != nil {
			return store.NewMessage{}, fmt.Errorf("account: %w", err)
		}
	}
	ch.OTPMAC = f.Core.Root.MAC(secret.OTP, kindFactor, ch.ID.String(), code)
	if test {
		return store.NewMessage{}, nil
	}
	sms := f.TextSMS(f.Settings.Factors.Text, code, metadata)
	sms.To, sms.Kind, sms.Channel = factor.Phone, kindFactor, flow.ChannelOf(channel)
	return f.Settings.HoldForSendNow(f.Seal(mail.ChannelSMS, kindFactor, sms, ch.ExpiresAt)), nil
}

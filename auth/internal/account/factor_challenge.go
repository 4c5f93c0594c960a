package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// kindFactor is the kind of an SMS with a factor's code in the outbox.
const kindFactor = "mfa"

// ChallengeFactor creates a challenge for one of the user's own factors; a phone is sent a code.
func (a *Accounts) ChallengeFactor(ctx context.Context, req RequestInfo, principal Principal, id uuid.UUID,
	channel string) (store.Challenge, store.Factor, error) {
	f := a.begin(req)
	factor, err := f.settings.challengeable(principal, id)
	if err != nil {
		return store.Challenge{}, factor, err
	}
	ch := store.Challenge{ID: uuid.New(), Factor: factor.ID, IP: f.req.TrustedIP, CreatedAt: f.now,
		ExpiresAt: f.now.Add(f.settings.Factors.ChallengeLife)}
	var q *quota
	var m store.NewMessage
	if factor.Kind == store.FactorPhone {
		if q, err = factorQuota(ctx, f, &principal, factor, channel); err != nil {
			return ch, factor, err
		}
		if m, err = factorSMS(f, factor, &ch, channel, principal.User.UserMetadata); err != nil {
			return ch, factor, err
		}
	}
	b := f.batch()
	if q != nil {
		q.take(b, f.now)
	}
	b.InsertChallenge(principal.User.ID, ch)
	b.message(principal.User.ID, m)
	b.Audit(f.audit(store.ActionChallengeCreated, principal.User.ID, principal.Session.ID, "factor_id",
		factor.ID.String(), "challenge_id", ch.ID.String()))
	err = f.send(ctx, b)
	if q != nil {
		err = q.refusalOf(err)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUserGone) { // the factor was deleted meanwhile
		err = errNoFactor
	}
	return ch, factor, failure("challenge a factor", err)
}

var errNoFactor = missing(CodeFactorNotFound, "Factor not found")

// factorOf finds one of a user's own factors: another user's is as unknown as none.
func factorOf(u store.User, id uuid.UUID) (store.Factor, error) {
	for _, factor := range u.Factors {
		if factor.ID == id {
			return factor, nil
		}
	}
	return store.Factor{}, errNoFactor
}

// challengeable returns one of the user's factors if it may be challenged. An unverified one does not open what a
// verified one guards: another person may have left it there.
func (s *Settings) challengeable(principal Principal, id uuid.UUID) (store.Factor, error) {
	factor, err := factorOf(principal.User, id)
	switch {
	case err != nil:
		return factor, err
	case factor.Kind == store.FactorTOTP && !s.Factors.TOTP.Verify:
		return factor, unprocessable(CodeTOTPVerifyDisabled, "MFA verification is disabled for TOTP")
	case factor.Kind == store.FactorPhone && !s.Factors.Phone.Verify:
		return factor, unprocessable(CodePhoneVerifyDisabled, "MFA verification is disabled for Phone")
	}
	return factor, checkChallenge(factor, principal.User, principal.Session)
}

// checkChallenge keeps a session below aal2 from verifying a factor for the first time if the user has a verified one.
func checkChallenge(factor store.Factor, u store.User, v store.Session) error {
	if !factor.Verified() && isBelowAAL2(u, v) {
		return errEnrollLow
	}
	return nil
}

// factorQuota checks whether an SMS may be sent now. Its pause is the factor's own; the budgets are those of all SMS.
func factorQuota(ctx context.Context, f *flow, by *Principal, factor store.Factor,
	channel string) (*quota, error) {
	if err := f.settings.Phone.checkChannel(channel); err != nil {
		return nil, err
	}
	if err := checkSMSSendable(f, "mfa", factor.Phone); err != nil {
		return nil, err
	}
	q := boundUser(f, smsQuota(f, "", factor.Phone), by)
	q.pauses = nil
	if f.settings.Factors.PhoneInterval > 0 {
		q.pauses = []store.Limit{store.NewInterval(f.limitKey("factor", factor.ID.String()),
			f.settings.Factors.PhoneInterval)}
	}
	b := f.batch()
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return nil, failure("look up", err)
	}
	return q, q.check(f.now)
}

// factorSMS chooses the code of a challenge and returns the SMS with it. A test number gets its fixed code, and no SMS.
func factorSMS(f *flow, factor store.Factor, ch *store.Challenge, channel string,
	metadata json.RawMessage) (store.NewMessage, error) {
	code, test := f.settings.Phone.testCode(factor.Phone, ch.CreatedAt)
	if !test {
		var err error
		if code, err = token.NewCode(f.settings.Factors.OTPLength); err != nil {
			return store.NewMessage{}, fmt.Errorf("account: %w", err)
		}
	}
	ch.OTPMAC = f.core.root.MAC(secret.OTP, kindFactor, ch.ID.String(), code)
	if test {
		return store.NewMessage{}, nil
	}
	sms := f.textSMS(f.settings.Factors.Text, code, metadata)
	sms.To, sms.Kind, sms.Channel = factor.Phone, kindFactor, channelOf(channel)
	return f.settings.holdForSendNow(f.seal(mail.ChannelSMS, kindFactor, sms, ch.ExpiresAt)), nil
}

package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// kindFactor is what an SMS with a factor's code is called in the outbox.
const kindFactor = "mfa"

// ChallengeFactor asks for a code of one of the caller's factors; a phone is sent one.
func (a *Accounts) ChallengeFactor(ctx context.Context, c Client, caller Caller, id uuid.UUID, channel string) (store.Challenge, store.Factor, error) {
	s, now := a.live.Load(), a.now()
	factor, err := s.answerable(caller, id)
	if err != nil {
		return store.Challenge{}, factor, err
	}
	ch := store.Challenge{ID: uuid.New(), Factor: factor.ID, IP: c.ToldIP, CreatedAt: now, ExpiresAt: now.Add(s.Factors.ChallengeLife)}
	var q *quota
	var m store.NewMessage
	if factor.Kind == store.FactorPhone {
		if q, err = a.factorQuota(ctx, s, factor, channel, now); err != nil {
			return ch, factor, err
		}
		if m, err = a.factorSMS(s, c, factor, &ch, channel); err != nil {
			return ch, factor, err
		}
	}
	b := a.db.Batch()
	if q != nil {
		q.take(b, now)
	}
	b.InsertChallenge(caller.User.ID, ch)
	if m.Payload != nil {
		m.User = caller.User.ID
		b.InsertMessage(m)
	}
	b.Audit(store.Audit{At: now, Action: store.ActionChallengeCreated, Actor: caller.User.ID, Session: caller.Session.ID, IP: c.IP,
		Traits: traits("factor_id", factor.ID.String(), "challenge_id", ch.ID.String())})
	err = b.Send(ctx)
	if q != nil {
		err = q.refused(err)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUserGone) { // the factor went meanwhile
		err = errNoFactor
	}
	if err == nil && m.Payload != nil {
		err = a.send(ctx, s, letter{message: m})
	}
	return ch, factor, failure("challenge a factor", err)
}

// answerable is one of the caller's factors that he may be asked for. One that is not verified yet does not
// open what a verified one guards: somebody may have left it there.
func (s *Settings) answerable(caller Caller, id uuid.UUID) (store.Factor, error) {
	factor, err := factorOf(caller.User, id)
	switch {
	case err != nil:
		return factor, err
	case factor.Kind == store.FactorTOTP && !s.Factors.TOTP.Verify:
		return factor, unprocessable(CodeTOTPVerifyDisabled, "MFA verification is disabled for TOTP")
	case factor.Kind == store.FactorPhone && !s.Factors.Phone.Verify:
		return factor, unprocessable(CodePhoneVerifyDisabled, "MFA verification is disabled for Phone")
	}
	return factor, mayProve(factor, caller.User, caller.Session)
}

// mayProve keeps a session below aal2 from verifying a factor for the first time when the user has one.
func mayProve(factor store.Factor, u store.User, v store.Session) error {
	if !factor.Verified() && low(u, v) {
		return errEnrollLow
	}
	return nil
}

// factorQuota judges whether an SMS may go out now. Its pause is the factor's own; the budgets are those of all SMS.
func (a *Accounts) factorQuota(ctx context.Context, s *Settings, factor store.Factor, channel string, now time.Time) (*quota, error) {
	if err := s.Phone.goodChannel(channel); err != nil {
		return nil, err
	}
	if err := a.canSendSMS(s, "mfa", factor.Phone); err != nil {
		return nil, err
	}
	q := a.smsQuota(s, "", factor.Phone, now)
	q.pauses = nil
	if s.Factors.PhoneInterval > 0 {
		q.pauses = []store.Limit{store.NewInterval(a.limitKey("factor", factor.ID.String()), s.Factors.PhoneInterval)}
	}
	b := a.db.Batch()
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return nil, failure("look up", err)
	}
	return q, q.judge(now)
}

// factorSMS chooses the code of a challenge and writes the SMS with it. A test number gets its fixed code, and
// no SMS.
func (a *Accounts) factorSMS(s *Settings, c Client, factor store.Factor, ch *store.Challenge, channel string) (store.NewMessage, error) {
	code, test := s.Phone.testCode(factor.Phone, ch.CreatedAt)
	if !test {
		var err error
		if code, err = token.NewCode(s.Factors.OTPLength); err != nil {
			return store.NewMessage{}, fmt.Errorf("account: %w", err)
		}
	}
	ch.OTPMAC = a.root.MAC(secret.OTP, kindFactor, ch.ID.String(), code)
	if test {
		return store.NewMessage{}, nil
	}
	text := "Your code is " + code
	if s.Factors.Text != nil {
		text = s.Factors.Text(code)
	}
	return s.waited(a.message(mail.ChannelSMS, kindFactor,
		mail.SMS{To: factor.Phone, Text: text, Token: code, Kind: kindFactor, Channel: channelOf(channel), IP: s.hookIP(mail.ChannelSMS, c)}, ch.CreatedAt, ch.ExpiresAt)), nil
}

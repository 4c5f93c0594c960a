package account

import (
	"context"
	"crypto/hmac"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
)

// factorMisses is how many wrong answers a factor takes in an hour, whoever gives them from wherever; then a
// right one is not looked at either. maxMisses is how many a challenge takes.
const factorMisses = 10

// answering is one call of VerifyFactor.
type answering struct {
	f         *flow
	principal Principal
	factor    store.Factor
	challenge uuid.UUID
	code      string
	notify    bool // may be written

	// What a transaction found out: each begins anew.
	judged   bool // the code was looked at
	refusal  error
	notified int

	made *customClaims // of the token, by a hook

	session store.Session // raised
	user    store.User
	refresh token.Refresh
}

// VerifyFactor answers a challenge. A right answer brings the caller's session to aal2 with a new refresh
// token, and ends his sessions below that. Wrong answers are counted under the lock on the user, so that as
// many as are sent at once make no more tries.
func (a *Accounts) VerifyFactor(ctx context.Context, req RequestInfo, principal Principal, p FactorAnswer) (Grant, error) {
	return verifyFactor(ctx, a.begin(req), principal, p)
}

func verifyFactor(ctx context.Context, f *flow, principal Principal, p FactorAnswer) (Grant, error) {
	if principal.Session.ID == uuid.Nil {
		return Grant{}, sessionNotFound()
	}
	factor, err := f.settings.answerable(principal, p.Factor)
	if err != nil {
		return Grant{}, err
	}
	v := answering{f: f, principal: principal, factor: factor, challenge: p.Challenge, code: strings.TrimSpace(p.Code)}
	if v.code == "" {
		return Grant{}, notValid("Code needs to be non-empty")
	}
	v.notify = canNotify(ctx, f, f.settings.Email.NotifyFactorEnrolled && !factor.Verified())
	if err := v.run(ctx); err != nil {
		return Grant{}, failure("verify a factor", err)
	}
	f.core.wake()
	f.countNotifications(ctx, v.notified)
	return signGrant(f, v.user, v.session, &v.refresh, v.made)
}

// run judges and raises in one transaction; in two when somebody is asked in between, who must not be waited
// for with a connection and a lock in hand.
func (v *answering) run(ctx context.Context) error {
	ask := v.f.settings.Factors.Attempt
	apart := ask != nil || v.f.settings.Hooks.Claims != nil
	err := v.locked(ctx, func(tx *store.Tx, u store.User, session store.Session) error {
		if err := v.judge(ctx, tx, u, session); err != nil || v.refusal != nil || apart {
			v.user, v.session = u, session
			return err
		}
		return v.raise(ctx, tx, u, session)
	})
	if err == nil && ask != nil && v.judged {
		err = v.consult(ctx, ask)
	}
	if err == nil && v.refusal == nil && v.f.settings.Hooks.Claims != nil { // who gets no token keeps the session and the refresh token that he has
		as := v.session
		as.AAL, as.AMR = 2, withMethod(as.AMR, factorMethod(v.factor.Kind), v.f.now)
		v.made, err = customClaimsOf(ctx, v.f, v.user, as, "")
	}
	switch {
	case err != nil:
		return err
	case v.refusal != nil || !apart:
		return v.refusal
	}
	return v.locked(ctx, func(tx *store.Tx, u store.User, session store.Session) error { return v.raise(ctx, tx, u, session) })
}

func (v *answering) locked(ctx context.Context, do func(*store.Tx, store.User, store.Session) error) error {
	return v.f.inTx(ctx, func(tx *store.Tx) error {
		v.judged, v.refusal, v.notified = false, nil, 0
		u, session, err := lockPrincipal(ctx, v.f, tx, v.principal)
		if err != nil {
			return err
		}
		if v.factor, err = factorOf(u, v.factor.ID); err != nil {
			return err
		}
		return do(tx, u, session)
	})
}

func (v *answering) misses() store.Limit {
	return store.Limit{Key: v.f.limitKey("factor misses", v.factor.ID.String()), Size: factorMisses, Refill: time.Hour}
}

// judge looks at the answer and uses up what it used. A refusal in v.refusal is committed with what it
// counted; an error undoes.
func (v *answering) judge(ctx context.Context, tx *store.Tx, u store.User, session store.Session) error {
	var at store.Attempt
	var levels []store.Level
	b := tx.Batch()
	b.Attempt(&at, v.factor.ID, v.challenge)
	b.Levels(&levels, v.misses())
	if err := b.Send(ctx); err != nil {
		return err
	}
	ch := at.Challenge
	switch {
	case ch.ID == uuid.Nil:
		return unprocessable(CodeFactorNotFound, "MFA factor with the provided challenge ID not found")
	case !ch.VerifiedAt.IsZero(), ch.IP != "" && v.f.req.TrustedIP != "" && ch.IP != v.f.req.TrustedIP:
		return unprocessable(CodeFactorIPMismatch, "Challenge and verify IP addresses mismatch.")
	case ch.Misses >= maxMisses:
		return errChallengeExpired(ch.ID)
	case v.f.now.After(ch.ExpiresAt):
		v.refusal = errChallengeExpired(ch.ID)
		b := tx.Batch()
		b.DeleteChallenge(ch.ID)
		return b.Send(ctx)
	}
	if err := v.mayCount(u, session); err != nil {
		return err
	}
	if wait := v.misses().Wait(levels[0], v.f.now, 1); wait > 0 {
		return limited(CodeOverRequestRate, "Request rate limit reached", wait)
	}
	step, reseal, right, err := v.check(at)
	if err != nil {
		return err
	}
	v.judged = true
	if !right {
		return v.miss(ctx, tx)
	}
	b = tx.Batch()
	b.SpendStep(v.factor.ID, step, reseal)
	b.UseChallenge(ch.ID, v.f.now)
	return b.Send(ctx)
}

// mayCount says whether a right answer may make one factor more a verified one.
func (v *answering) mayCount(u store.User, session store.Session) error {
	if err := mayProve(v.factor, u, session); err != nil {
		return err
	}
	verified := 0
	for _, factor := range u.Factors {
		if factor.Verified() {
			verified++
		}
	}
	if !v.factor.Verified() && verified >= v.f.settings.Factors.MaxVerified {
		return errTooManyFactors
	}
	return nil
}

func errChallengeExpired(id uuid.UUID) error {
	return unprocessable(CodeChallengeExpired,
		fmt.Sprintf("MFA challenge %s has expired, verify against another challenge or create a new challenge.", id))
}

// check says whether the code is right. reseal is the key sealed anew when an earlier root key had sealed it.
func (v *answering) check(at store.Attempt) (step int64, reseal []byte, right bool, err error) {
	if v.factor.Kind == store.FactorPhone {
		macs := v.f.core.root.MACs(secret.OTP, kindFactor, v.challenge.String(), v.code)
		return 0, nil, slices.ContainsFunc(macs, func(mac []byte) bool { return hmac.Equal(mac, at.Challenge.OTPMAC) }), nil
	}
	key, old, err := v.f.core.root.Open(secret.Factors, at.Secret, v.factor.ID[:])
	if err != nil {
		return 0, nil, false, &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "The key of this factor cannot be read",
			Err: fmt.Errorf("account: factor %s: %w", v.factor.ID, err)}
	}
	if old {
		reseal = sealKey(v.f, v.factor.ID, key)
	}
	step, right = totp.Check(key, v.code, v.f.now, at.LastStep)
	return step, reseal, right, nil
}

// miss counts a wrong answer. Everybody who takes from this bucket has locked the user before, so that nobody
// waits crosswise. The fixed code of a test number is nothing to be guessed.
func (v *answering) miss(ctx context.Context, tx *store.Tx) error {
	v.refusal = unprocessable(CodeFactorVerificationFailed, "Invalid TOTP code entered")
	if v.factor.Kind == store.FactorPhone {
		v.refusal = unprocessable(CodeFactorVerificationFailed, "Invalid MFA Phone code entered")
	}
	b := tx.Batch()
	if _, test := v.f.settings.Phone.testCode(v.factor.Phone, v.f.now); !test || v.factor.Kind != store.FactorPhone {
		b.Take(v.misses(), 1, v.f.now)
		b.MissChallenge(v.challenge)
	}
	b.Audit(v.audit(store.ActionVerificationFailed))
	return b.Send(ctx)
}

// consult asks what is to come of the attempt.
func (v *answering) consult(ctx context.Context, ask func(context.Context, FactorAttempt) (FactorVerdict, error)) error {
	verdict, err := ask(ctx, FactorAttempt{User: v.principal.User.ID, Factor: v.factor.ID, Kind: v.factor.Kind, Valid: v.refusal == nil, IP: v.f.req.IP})
	if err != nil || !verdict.Reject {
		return err
	}
	b := v.f.batch()
	b.EndSessions(store.EndSessions{User: v.principal.User.ID, Reason: store.EndedByVerdict, At: v.f.now})
	if err := b.Send(ctx); err != nil {
		return err
	}
	msg := verdict.Message
	if msg == "" {
		msg = "Further MFA verification attempts will be rejected."
	}
	return denied(CodeFactorRejected, msg)
}

// raise lets the right answer have its effect.
func (v *answering) raise(ctx context.Context, tx *store.Tx, u store.User, session store.Session) error {
	v.refresh = token.Refresh{Session: session.ID, Secret: token.NewRefreshSecret()}
	b := tx.Batch()
	b.RaiseSession(&v.session, store.Raise{
		User: u.ID, Session: session.ID, SecretHash: v.refresh.SecretHash(), Factor: v.factor.ID,
		AMR: withMethod(session.AMR, factorMethod(v.factor.Kind), v.f.now), Now: v.f.now,
	})
	b.EndLowSessions(u.ID, session.ID, v.f.now)
	b.VerifyFactor(v.factor.ID, v.f.now)
	b.DeleteUnverified(u.ID, v.factor.Kind)
	if m, ok := factorNotification(v.f, v.notify && !v.factor.Verified(), mail.FactorEnrolled, u, v.factor); ok {
		b.InsertMessage(m)
		v.notified = 1
	}
	b.Audit(v.audit(store.ActionVerificationAttempted))
	b.User(&v.user, u.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if v.session.ID == uuid.Nil { // a sign-out takes no lock on the user
		return sessionNotFound()
	}
	v.refresh.Counter = v.session.Counter
	return nil
}

func (v *answering) audit(action store.Action) store.Audit {
	return v.f.audit(action, v.principal.User.ID, v.principal.Session.ID, "factor_id", v.factor.ID.String(), "factor_type", string(v.factor.Kind), "challenge_id", v.challenge.String())
}

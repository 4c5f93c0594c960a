package factor

import (
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
)

// factorMisses is the size of a factor's bucket of wrong answers, for all clients together; one is refilled every 6
// minutes. While the bucket is empty, right answers are refused too. In addition, a single challenge allows only
// MaxMisses.
const factorMisses = 10

// verifyFactorOp is the state of one call of VerifyFactor or VerifyRecoveryCode.
type verifyFactorOp struct {
	f         flow.Flow
	principal flow.Principal
	factor    store.Factor
	challenge uuid.UUID
	code      string
	notify    bool // the budget allows a notification

	find   func(store.User) (store.Factor, error)                           // returns the factor from the locked user
	judge  func(context.Context, *flow.Tx, store.User, store.Session) error // checks the answer and sets judged
	judged bool                                                             // the answer was checked
	// passed is the ID of the factor, set after its answer was found right and the hooks were called. The session is
	// then raised in a second transaction.
	passed uuid.UUID
	// done is called after a right answer, with the batch that raises the session.
	done func(*flow.Batch)

	made *flow.CustomClaims // claims of the access token, from the hook of access tokens

	session store.Session // the session at aal2
	user    store.User
	refresh token.Refresh
}

// VerifyFactor checks the answer to a challenge of a second factor. A right answer raises the session to aal2 with a
// new refresh token, and ends the user's sessions below aal2. Wrong answers are counted while the user's row is locked,
// so that parallel requests get no further tries.
func (a *Factors) VerifyFactor(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	p flow.FactorAnswer) (flow.Grant, error) {
	f := a.core.Begin(req)
	op, err := verifying(ctx, f, principal, p)
	if err != nil {
		return flow.Grant{}, err
	}
	return op.grant(ctx)
}

// VerifyFactorConsole does what VerifyFactor does for a session of the admin console, which has no tokens.
func (a *Factors) VerifyFactorConsole(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	p flow.FactorAnswer) error {
	f := a.core.Begin(req)
	tokenless := *f.Settings
	tokenless.Hooks.Claims = nil
	f.Settings = &tokenless
	op, err := verifying(ctx, f, principal, p)
	if err != nil {
		return err
	}
	return refusal.Failure("verify a factor", op.run(ctx))
}

// verifying returns the operation that checks the answer p to a challenge.
func verifying(ctx context.Context, f *flow.Flow, principal flow.Principal,
	p flow.FactorAnswer) (*verifyFactorOp, error) {
	if principal.Session.ID == uuid.Nil {
		return nil, flow.SessionNotFound()
	}
	factor, err := challengeable(f.Settings, principal, p.Factor)
	if err != nil {
		return nil, err
	}
	op := &verifyFactorOp{f: *f, principal: principal, factor: factor, challenge: p.Challenge,
		code: strings.TrimSpace(p.Code)}
	op.judge = op.judgeAnswer
	op.done = func(b *flow.Batch) { b.Audit(op.audit(store.ActionVerificationAttempted)) }
	if factor.Kind == store.FactorWebAuthn {
		err = op.answerWithKey(p.WebAuthn)
	} else if op.code == "" {
		err = refusal.NotValid("Code needs to be non-empty")
	}
	if err != nil {
		return nil, err
	}
	op.notify = flow.CanNotify(ctx, f, f.Settings.Email.Notify.FactorEnrolled && !factor.Verified())
	op.find = func(u store.User) (store.Factor, error) { return factorOf(u, factor.ID) }
	return op, nil
}

// grant runs the operation, and signs the tokens of the session, now at aal2.
func (op *verifyFactorOp) grant(ctx context.Context) (flow.Grant, error) {
	err := op.run(ctx)
	if errors.Is(err, store.ErrCredentialExists) {
		err = flow.ErrCredentialExists
	}
	if err != nil {
		return flow.Grant{}, refusal.Failure("verify a factor", err)
	}
	return flow.SignGrant(&op.f, op.user, op.session, &op.refresh, op.made)
}

// run checks the answer and raises the session, in one transaction. If a hook must be called between the two steps, it
// takes two transactions, since neither a connection nor a lock may be held during the call.
func (op *verifyFactorOp) run(ctx context.Context) error {
	ask := op.f.Settings.Factors.Attempt
	apart := ask != nil || op.f.Settings.Hooks.Claims != nil
	err := op.locked(ctx, func(tx *flow.Tx, u store.User, session store.Session) error {
		if err := op.judge(ctx, tx, u, session); err != nil || tx.Refusal != nil || apart {
			op.user, op.session = u, session
			return err
		}
		return op.raise(ctx, tx, u, session)
	})
	if _, refused := err.(*refusal.Committed); ask != nil && op.judged && (err == nil || refused) {
		if err := op.askHook(ctx, ask, err == nil); err != nil {
			return err
		}
	}
	// If the hook gives no claims, the session and its refresh token stay as they are.
	if err == nil && op.f.Settings.Hooks.Claims != nil {
		as := op.session
		as.AAL, as.AMR = 2, withMethod(as.AMR, factorMethod(op.factor.Kind), op.f.Now)
		op.made, err = flow.CustomClaimsOf(ctx, &op.f, op.user, as, "")
	}
	if err != nil || !apart {
		return err
	}
	op.passed = op.factor.ID
	return op.locked(ctx, func(tx *flow.Tx, u store.User, session store.Session) error {
		if err := op.checkFactorLimit(u, session); err != nil { // another factor was verified in the meantime
			return err
		}
		return op.raise(ctx, tx, u, session)
	})
}

func (op *verifyFactorOp) locked(ctx context.Context, do func(*flow.Tx, store.User, store.Session) error) error {
	return flow.OnPrincipal(ctx, &op.f, op.principal, func(tx *flow.Tx, u store.User, v store.Session) (err error) {
		op.judged = false
		if op.factor, err = op.find(u); err != nil {
			return err
		}
		return do(tx, u, v)
	})
}

func (op *verifyFactorOp) misses() store.Limit {
	return store.Limit{Key: op.f.LimitKey("factor misses", op.factor.ID.String()), Size: factorMisses,
		Refill: time.Hour}
}

// judgeAnswer checks the answer. If it is right, the challenge is used up; otherwise the miss is counted. A refusal by
// tx.Refuse commits the transaction, and with it the miss; an error rolls the transaction back.
func (op *verifyFactorOp) judgeAnswer(ctx context.Context, tx *flow.Tx, u store.User, session store.Session) error {
	var levels []store.Level
	at, err := op.open(ctx, tx, func(b *flow.Batch) { b.Levels(&levels, op.misses()) })
	if err != nil || tx.Refusal != nil {
		return err
	}
	if err := op.checkFactorLimit(u, session); err != nil {
		return err
	}
	if wait := op.misses().Wait(levels[0], op.f.Now, 1); wait > 0 {
		return refusal.Limited(refusal.CodeOverRequestRate, "Request rate limit reached", wait)
	}
	step, reseal, right, err := op.check(at)
	if err != nil {
		return err
	}
	op.judged = true
	if !right {
		return op.countMiss(ctx, tx)
	}
	b := tx.Batch()
	b.SpendStep(op.factor.ID, step, reseal)
	b.UseChallenge(op.challenge, op.f.Now)
	return b.Send(ctx)
}

// open reads the challenge, in one round trip with the statements that the function read adds, and checks whether the
// challenge may be answered.
func (op *verifyFactorOp) open(ctx context.Context, tx *flow.Tx,
	read func(*flow.Batch)) (at store.Attempt, err error) {
	b := tx.Batch()
	b.Attempt(&at, op.factor.ID, op.challenge)
	read(b)
	if err := b.Send(ctx); err != nil {
		return at, err
	}
	return at, op.checkOpen(ctx, tx, at.Challenge)
}

// checkOpen checks whether the challenge ch may be answered.
func (op *verifyFactorOp) checkOpen(ctx context.Context, tx *flow.Tx, ch store.Challenge) error {
	switch {
	case ch.ID == uuid.Nil:
		return refusal.Unprocessable(refusal.CodeFactorNotFound, "MFA factor with the provided challenge ID not found")
	case !ch.VerifiedAt.IsZero(), ch.IP != "" && op.f.Req.TrustedIP != "" && ch.IP != op.f.Req.TrustedIP:
		return refusal.Unprocessable(refusal.CodeFactorIPMismatch, "Challenge and verify IP addresses mismatch.")
	case ch.Misses >= flow.MaxMisses:
		return errChallengeExpired(ch.ID)
	case op.f.Now.After(ch.ExpiresAt):
		tx.Refuse(errChallengeExpired(ch.ID))
		return tx.Run(ctx, func(b *flow.Batch) { b.DeleteChallenge(ch.ID) })
	}
	return nil
}

// checkFactorLimit checks whether a right answer may make the factor a verified one.
func (op *verifyFactorOp) checkFactorLimit(u store.User, session store.Session) error {
	if err := checkChallenge(op.factor, u, session); err != nil {
		return err
	}
	verified := 0
	for _, factor := range u.Factors {
		if factor.Verified() {
			verified++
		}
	}
	if !op.factor.Verified() && verified >= op.f.Settings.Factors.MaxVerified {
		return errTooManyFactors
	}
	return nil
}

func errChallengeExpired(id uuid.UUID) error {
	return refusal.Unprocessable(refusal.CodeChallengeExpired,
		fmt.Sprintf("MFA challenge %s has expired, verify against another challenge or create a new challenge.", id))
}

// check reports whether the code is right. For a TOTP factor, step is the time step of the code. reseal is the factor's
// key encrypted again, if an earlier root key had encrypted it.
func (op *verifyFactorOp) check(at store.Attempt) (step int64, reseal []byte, right bool, err error) {
	if op.factor.Kind == store.FactorPhone {
		macs := op.f.Core.Root.MACs(secret.OTP, kindFactor, op.challenge.String(), op.code)
		return 0, nil, slices.ContainsFunc(macs, func(mac []byte) bool {
			return hmac.Equal(mac, at.Challenge.OTPMAC)
		}), nil
	}
	key, old, err := op.f.Core.Root.Open(secret.Factors, at.Secret, op.factor.ID[:])
	if err != nil {
		return 0, nil, false, &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
			Msg: "The key of this factor cannot be read", Err: fmt.Errorf("account: factor %s: %w", op.factor.ID, err)}
	}
	if old {
		reseal = sealKey(&op.f, op.factor.ID, key)
	}
	step, right = totp.Check(key, op.code, op.f.Now, at.LastStep)
	return step, reseal, right, nil
}

// countMiss counts a wrong answer. All callers lock the user's row before they change the bucket, so they cannot
// deadlock. Wrong answers for a test number do not count, since its fixed code is known anyway.
func (op *verifyFactorOp) countMiss(ctx context.Context, tx *flow.Tx) error {
	tx.Refuse(refusal.Unprocessable(refusal.CodeFactorVerificationFailed, "Invalid TOTP code entered"))
	if op.factor.Kind == store.FactorPhone {
		tx.Refuse(refusal.Unprocessable(refusal.CodeFactorVerificationFailed, "Invalid MFA Phone code entered"))
	}
	b := tx.Batch()
	if _, test := op.f.Settings.Phone.TestCode(op.factor.Phone, op.f.Now); !test ||
		op.factor.Kind != store.FactorPhone {
		b.Take(op.misses(), 1, op.f.Now)
		b.MissChallenge(op.challenge)
	}
	b.Audit(op.audit(store.ActionVerificationFailed))
	return b.Send(ctx)
}

// askHook calls the operator's hook with the result of the check, right or not. If the hook rejects the attempt, it
// ends all sessions of the user and returns the refusal.
func (op *verifyFactorOp) askHook(ctx context.Context, ask func(context.Context,
	flow.FactorAttempt) (flow.Verdict, error), right bool) error {
	verdict, err := ask(ctx, flow.FactorAttempt{User: op.principal.User.ID, Factor: op.factor.ID, Kind: op.factor.Kind,
		Valid: right, IP: op.f.Req.IP})
	if err != nil || !verdict.Reject {
		return err
	}
	b := op.f.Batch()
	b.EndSessions(store.EndSessions{User: op.principal.User.ID, Reason: store.EndedByVerdict, At: op.f.Now})
	if err := b.Send(ctx); err != nil {
		return err
	}
	return refusal.Denied(refusal.CodeFactorRejected,
		cmp.Or(verdict.Message, "Further MFA verification attempts will be rejected."))
}

// raise raises the session to aal2, after a right answer.
func (op *verifyFactorOp) raise(ctx context.Context, tx *flow.Tx, u store.User, session store.Session) error {
	op.refresh = token.Refresh{Session: session.ID, Secret: token.NewRefreshSecret()}
	b := tx.Batch()
	b.RaiseSession(&op.session, store.Raise{
		User: u.ID, Session: session.ID, SecretHash: op.refresh.SecretHash(), Factor: op.factor.ID,
		AMR: withMethod(session.AMR, factorMethod(op.factor.Kind), op.f.Now), Now: op.f.Now,
	})
	first := !slices.ContainsFunc(u.Factors, store.Factor.Verified)
	b.EndLowSessions(u.ID, session.ID, first, op.f.Now)
	b.VerifyFactor(op.factor.ID, session.ID, first, op.f.Now)
	b.DeleteUnverified(u.ID, op.factor.Kind)
	if op.notify && !op.factor.Verified() {
		flow.NotifyUser(&op.f, b, mail.FactorEnrolled, u, mail.Vars{FactorType: string(op.factor.Kind)})
	}
	op.done(b)
	b.User(&op.user, u.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if op.session.ID == uuid.Nil { // a sign-out, which does not lock the user, has ended the session
		return flow.SessionNotFound()
	}
	op.refresh.Counter = op.session.Counter
	return nil
}

func (op *verifyFactorOp) audit(action store.Action, pairs ...string) store.Audit {
	return op.f.Audit(action, op.principal.User.ID, op.principal.Session.ID, append(pairs, "factor_id",
		op.factor.ID.String(), "factor_type", string(op.factor.Kind), "challenge_id", op.challenge.String())...)
}

// factorMethod returns the amr method of a session in which a factor of kind k was verified.
func factorMethod(k store.FactorKind) string {
	if k == store.FactorTOTP {
		return "totp"
	}
	return "mfa/" + string(k)
}

// withMethod returns an amr list with the method in front. An older entry of the method is removed; other entries stay.
func withMethod(old json.RawMessage, method string, now time.Time) json.RawMessage {
	list := []json.RawMessage{flow.MustJSON(token.AMR{Method: method, Timestamp: now.Unix()})}
	var entries []json.RawMessage
	_ = json.Unmarshal(old, &entries) // valid, since it comes from PostgreSQL
	for _, e := range entries {
		var m token.AMR
		if json.Unmarshal(e, &m) == nil && m.Method != method {
			list = append(list, e)
		}
	}
	return flow.MustJSON(list)
}

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// TryHook calls the PostgreSQL function of a hook with a sample for a user who does not exist, and rolls back. The
// error is an ErrHookRights if the function lacks a right.
func TryHook(ctx context.Context, db *store.DB, c *config.Config, l *config.Live, p hook.Point) error {
	var schema, function string
	var failed error
	set := hook.NewSet(hook.Options{Functions: func(ctx context.Context, s, f string, in []byte) (out []byte, err error) {
		schema, function = s, f
		out, failed = db.TryFunction(ctx, s, f, in, hook.FunctionLimit)
		return out, failed
	}}, l.Hooks)
	defer set.Close()
	err := callSample(ctx, set, c, l, p)
	if text := db.GrantFor(ctx, schema, function, failed); text != "" {
		return fmt.Errorf("%w: %s", ErrHookRights, text)
	}
	if errors.Is(failed, store.ErrFunctionTime) {
		return fmt.Errorf("it takes longer than %v", hook.FunctionLimit)
	}
	if failed == nil {
		if e, ok := errors.AsType[*hook.Error](err); ok {
			return e
		}
		return err
	}
	return failed
}

// ErrHookRights means that the function of a hook, or the role that it runs as, lacks a right.
var ErrHookRights = errors.New("the function lacks a right")

// callSample calls a hook with a sample, as the flow or the outbox would call it.
func callSample(ctx context.Context, set *hook.Set, c *config.Config, l *config.Live, p hook.Point) error {
	const ip = "192.0.2.1"
	now := time.Now()
	s := l.Accounts
	u := store.User{ID: uuid.New(), Aud: s.Audience, Role: s.Role, Email: "unknown@example.invalid",
		EmailConfirmedAt: now, CreatedAt: now, UpdatedAt: now, UserMetadata: []byte("{}"),
		AppMetadata: []byte(`{"provider": "email", "providers": ["email"]}`)}
	var factor attemptFunc
	s.Hooks, factor = flowHooks(set)
	var err error
	switch in := map[string]any{}; p {
	case hook.BeforeUserCreated:
		return s.Hooks.BeforeCreate(ctx, ip, u)
	case hook.CustomAccessToken:
		_, err = flow.CustomClaimsOf(ctx, &flow.Flow{Settings: &s, Req: flow.RequestInfo{IP: ip}, Now: now}, u,
			store.Session{ID: uuid.New(), CreatedAt: now, AAL: 1,
				AMR: fmt.Appendf(nil, `[{"method": "password", "timestamp": %d}]`, now.Unix())}, "")
	case hook.PasswordAttempt:
		_, err = s.Hooks.Password(ctx, flow.PasswordAttempt{User: u.ID, Valid: true, IP: ip})
	case hook.FactorAttempt:
		_, err = factor(ctx, flow.FactorAttempt{User: u.ID, Factor: uuid.New(), Kind: store.FactorTOTP, Valid: true, IP: ip})
	default:
		if p == hook.SendEmail {
			text, _ := json.Marshal(mail.Sample("magic_link", c.General.SiteURL, c.API.ExternalURL, now))
			in, _, err = hook.EmailInput(text, &u, c.API.ExternalURL, false, func(*mail.Payload) string { return "en" })
		} else if p == hook.SendSMS {
			in, _, err = hook.SMSInput([]byte(`{"to": "15550001", "token": "123456", "kind": "sms"}`), "en")
		}
		if err == nil {
			in["user"] = userJSON(&u)
			err = set.Call(ctx, p, ip, in, nil)
		}
	}
	return err
}

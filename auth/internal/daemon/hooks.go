package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/store"
)

// makeHooks replaces the current hooks, and sets them in the settings of the flows. Requests that are being handled
// keep the hooks with which they began.
func (d *daemon) makeHooks(l *config.Live) {
	set := hook.NewSet(hook.Options{Functions: d.callFunction, Now: d.clock.Now, Watch: d.watch(),
		Inject: d.inject()}, l.Hooks)
	l.Accounts.Hooks, l.Accounts.Factors.Attempt = flowHooks(set)
	if l.SendSync {
		l.Accounts.Hooks.SendNow = d.sendNow(set)
	}
	if old := d.hooks.Swap(set); old != nil {
		old.Close()
	}
}

func (d *daemon) callFunction(ctx context.Context, schema, function string, in []byte) ([]byte, error) {
	out, err := d.db.CallFunction(ctx, schema, function, in, hook.FunctionLimit)
	if errors.Is(err, store.ErrFunctionTime) {
		err = fmt.Errorf("%w: %w", hook.ErrFunctionTime, err)
	}
	return out, err
}

type attemptFunc = func(context.Context, flow.FactorAttempt) (flow.Verdict, error)

// flowHooks returns the functions by which flows call the hooks. The function of a hook that is off is nil.
func flowHooks(set *hook.Set) (h flow.Hooks, factor attemptFunc) {
	if set.On(hook.BeforeUserCreated) {
		h.BeforeCreate = func(ctx context.Context, ip string, u store.User) error {
			return refusalOf(set.Call(ctx, hook.BeforeUserCreated, ip, map[string]any{"user": userJSON(&u)}, nil))
		}
	}
	h.Sends = map[string]bool{mail.ChannelEmail: set.On(hook.SendEmail), mail.ChannelSMS: set.On(hook.SendSMS)}
	h.AfterCreate = set.On(hook.AfterUserCreated)
	if set.On(hook.CustomAccessToken) {
		h.Claims = func(ctx context.Context, q flow.ClaimsQuestion) (json.RawMessage, error) {
			var out struct{ Claims json.RawMessage }
			err := set.Call(ctx, hook.CustomAccessToken, q.IP,
				map[string]any{"user_id": q.User, "claims": q.Claims, "authentication_method": q.Method}, &out)
			if err == nil && len(out.Claims) == 0 {
				err = &hook.Error{Status: 500, Code: hook.CodeFailed, Msg: "output claims field is missing"}
			}
			return out.Claims, refusalOf(err)
		}
	}
	if set.On(hook.PasswordAttempt) {
		h.Password = func(ctx context.Context, q flow.PasswordAttempt) (flow.Verdict, error) {
			var out hook.Verdict
			err := set.Call(ctx, hook.PasswordAttempt, q.IP, map[string]any{"user_id": q.User, "valid": q.Valid}, &out)
			return flow.Verdict{Reject: out.Rejects(), SignOut: out.SignOut, Message: out.Message},
				refusalOf(err)
		}
	}
	if set.On(hook.FactorAttempt) {
		factor = func(ctx context.Context, q flow.FactorAttempt) (flow.Verdict, error) {
			var out hook.Verdict
			err := set.Call(ctx, hook.FactorAttempt, q.IP,
				map[string]any{"user_id": q.User, "factor_id": q.Factor, "factor_type": q.Kind, "valid": q.Valid}, &out)
			return flow.Verdict{Reject: out.Rejects(), Message: out.Message}, refusalOf(err)
		}
	}
	return h, factor
}

// sendNow returns, by channel, the functions that call a sending hook before the request is answered.
func (d *daemon) sendNow(set *hook.Set) map[string]func(context.Context, uuid.UUID) error {
	all := map[string]func(context.Context, uuid.UUID) error{}
	for channel, p := range map[string]hook.Point{mail.ChannelEmail: hook.SendEmail, mail.ChannelSMS: hook.SendSMS} {
		if set.On(p) {
			all[channel] = func(ctx context.Context, id uuid.UUID) error { return refusalOf(d.outbox.SendNow(ctx, id)) }
		}
	}
	return all
}

func userJSON(u *store.User) json.RawMessage { return httpapi.AppendUser(make([]byte, 0, 1024), u) }

// refusalOf converts an error of a hook to a Refusal.
func refusalOf(err error) error {
	e, ok := errors.AsType[*hook.Error](err)
	if !ok {
		return err
	}
	return &refusal.Refusal{Kind: refusal.KindFailed, Code: e.Code, Msg: e.Msg, Err: err, Status: e.Status,
		ByHook: e.Refused}
}

// hookSender is an outbox.Sender that calls a hook while the hook is on, and otherwise sends by another Sender.
type hookSender struct {
	d     *daemon
	point hook.Point
	// input returns the input of the hook for a message, and the client's address. Send adds the member user.
	input     func(m outbox.Item, u *store.User) (in map[string]any, ip string, err error)
	otherwise outbox.Sender // nil: while the hook is off, messages wait
}

// Ready implements outbox.Resting.
func (s hookSender) Ready() bool {
	if s.d.hooks.Load().On(s.point) {
		return true
	}
	resting, ok := s.otherwise.(outbox.Resting)
	return s.otherwise != nil && (!ok || resting.Ready())
}

// Send implements outbox.Sender. If the hook answers with a status of 400 to 499, the failure is final.
func (s hookSender) Send(ctx context.Context, m outbox.Item) error {
	set := s.d.hooks.Load()
	switch {
	case set.On(s.point):
	case s.otherwise == nil:
		return errors.New("the hook is off")
	default:
		return s.otherwise.Send(ctx, m)
	}
	u, err := s.d.db.User(ctx, m.User)
	if errors.Is(err, store.ErrNotFound) {
		return &mail.Refused{Err: errors.New("the user is gone")}
	}
	if err != nil {
		return err
	}
	in, ip, err := s.input(m, &u)
	if err != nil {
		return &mail.Refused{Err: err}
	}
	in["user"] = userJSON(&u)
	err = set.Call(ctx, s.point, ip, in, nil)
	if e, ok := errors.AsType[*hook.Error](err); ok && e.Refused && e.Status < 500 && e.Status != 408 &&
		e.Status != 429 {
		return &mail.Refused{Err: err}
	}
	return err
}

func (d *daemon) emailInput(m outbox.Item, u *store.User) (map[string]any, string, error) {
	c := d.config.Load()
	return hook.EmailInput(m.Payload, u, c.API.ExternalURL, c.Accounts.Email.SecureChange &&
		!c.Accounts.Email.Autoconfirm, d.renderer.Language)
}

func (d *daemon) smsInput(m outbox.Item, _ *store.User) (map[string]any, string, error) {
	return hook.SMSInput(m.Payload, d.renderer.Language(nil))
}

func createdInput(m outbox.Item, _ *store.User) (map[string]any, string, error) {
	var p flow.Created
	if json.Unmarshal(m.Payload, &p) != nil {
		return nil, "", errors.New("the payload is no new user")
	}
	return map[string]any{}, p.IP, nil
}

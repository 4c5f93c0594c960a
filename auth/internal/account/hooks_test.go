package account_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// code is a hook. Each of its calls needs the only connection of a pool, so that a flow that calls it with a
// transaction open waits for itself.
type code struct {
	h       *house
	mu      sync.Mutex
	asked   []string
	before  []store.User
	refusal error
	verdict flow.Verdict
}

func (c *code) ask(what string) error {
	within, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.h.db.Ping(within); err != nil {
		c.h.t.Errorf("%s is asked while the only connection is taken: %v", what, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, what)
	return c.refusal
}

func (c *code) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = err
}

// since are the questions since the last call.
func (c *code) since() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := strings.Join(c.asked, " ")
	c.asked = nil
	return all
}

func hooked(t *testing.T, change ...func(*flow.Settings)) (*house, *code) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{URL: storetest.URL(t), Settings: store.Settings{MaxConns: 1}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	h, c := openOn(t, db, change...), new(code)
	c.h = h
	h.set(func(s *flow.Settings) {
		s.Hooks = flow.Hooks{
			BeforeCreate: func(_ context.Context, ip string, u store.User) error {
				if ip != browser.IP {
					t.Errorf("from %q", ip)
				}
				c.before = append(c.before, u)
				return c.ask("before")
			},
			AfterCreate: true,
			Claims: func(_ context.Context, q flow.ClaimsQuestion) (json.RawMessage, error) {
				var claims map[string]any
				if err := json.Unmarshal(q.Claims, &claims); err != nil || claims["sub"] != q.User.String() {
					t.Errorf("%s: %v", q.Claims, err)
				}
				claims["tenant"] = "blue"
				text, _ := json.Marshal(claims)
				return text, c.ask("claims:" + q.Method)
			},
			Password: func(_ context.Context, q flow.PasswordAttempt) (flow.Verdict, error) {
				return c.verdict, c.ask(map[bool]string{true: "right", false: "wrong"}[q.Valid])
			},
		}
		s.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
			return flow.Verdict{}, c.ask("factor")
		}
	})
	return h, c
}

var no = &refusal.Refusal{Kind: refusal.KindFailed, Status: 403, Code: refusal.CodeHookRefused, Msg: "members only",
	ByHook: true}

const saidNo = "hook_refused: members only"

// news returns the users that the after-user-created messages report.
func (h *house) news() (ids []uuid.UUID) {
	h.t.Helper()
	list, err := h.db.Messages(h.t.Context(), store.MessageFilter{Limit: 1000}, time.Now())
	must.Succeed(h.t, err)
	for _, m := range list {
		if m.Kind == flow.KindAfterCreate {
			ids = append(ids, m.User)
		}
	}
	return ids
}

// Every way to a new user calls the hook once before and once after, with the same ID; a refused user leaves nothing.
func TestHooks_creation(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		change func(*flow.Settings)
		create func(*house) error
		asked  string
	}{
		"sign-up": {nil, func(h *house) error {
			_, err := h.SignUp(h.t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
			return err
		}, "before"},
		"sign-up, confirmed": {func(s *flow.Settings) { s.Email.Autoconfirm = true }, func(h *house) error {
			_, err := h.SignUp(h.t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
			return err
		}, "before claims:password"},
		"anonymous": {nil, func(h *house) error {
			_, err := h.SignUpAnonymous(h.t.Context(), browser, nil)
			return err
		},
			"before claims:anonymous"},
		"otp": {nil, func(h *house) error {
			return h.SendOTP(h.t.Context(), browser, flow.OTP{Email: "mia@example.org", CreateUser: true})
		}, "before"},
		"phone": {nil, func(h *house) error {
			return h.SendOTP(h.t.Context(), browser, flow.OTP{Phone: "+491512", CreateUser: true})
		}, "before"},
		"provider": {nil, func(h *house) error {
			_, err := h.arrive(person("github", "17", "*mia@example.org"))
			return err
		},
			"before claims:oauth"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var change []func(*flow.Settings)
			if way.change != nil {
				change = append(change, way.change)
			}
			h, c := hooked(t, change...)
			c.refuse(no)
			refused(t, way.create(h), saidNo)
			list, _, err := h.db.Users(t.Context(), store.UsersFilter{Limit: 10})
			if messages, _ := h.db.Messages(t.Context(), store.MessageFilter{Limit: 10}, time.Now()); err != nil ||
				len(list) != 0 || len(messages) != 0 || c.since() != "before" {
				t.Fatalf("the refused left %v %v, %v", list, messages, err)
			}
			c.refuse(nil)
			must.Succeed(t, way.create(h))
			if got := c.since(); got != way.asked {
				t.Errorf("asked %s, want %s", got, way.asked)
			}
			told := c.before[len(c.before)-1]
			if u := h.user(told.ID); u.Email != told.Email || u.Phone != told.Phone ||
				u.IsAnonymous != told.IsAnonymous {
				t.Errorf("told of %s, made %s", brief(told), brief(u))
			}
			if news := h.news(); !slices.Equal(news, []uuid.UUID{told.ID}) {
				t.Errorf("news of %v", news)
			}
		})
	}
}

// The hook is not called for known users, except at a sign-up, whose answer must not reveal them, nor for users whom an
// administrator creates or invites.
func TestHooks_noCreation(t *testing.T) {
	t.Parallel()
	h, c := hooked(t)
	h.confirmed("mia@example.org")
	h.create(flow.Attributes{Email: ptr("adam@example.org"), Password: ptr("sesame")})
	c.since()
	c.refuse(no)
	_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "other1"})
	refused(t, err, saidNo)
	_, err = h.SignUp(t.Context(), browser, flow.SignUp{Email: "nobody@example.org", Password: "other1"})
	refused(t, err, saidNo)
	c.refuse(nil)
	if _, err := h.SignUp(
		t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "other1"}); err != nil {
		t.Error(err)
	}
	if err := h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org", CreateUser: true}); err != nil {
		t.Error(err)
	}
	if got := c.since(); got != "before before before" {
		t.Error(got)
	}
	if news := h.news(); len(news) != 1 {
		t.Errorf("news of %v", news)
	}
}

// Every token of a user has the claims of the hook. Without them a new session ends, a refresh can come again,
// and a session is not raised.
func TestHooks_claims(t *testing.T) {
	t.Parallel()
	h, c := hooked(t)
	claimed := func(g flow.Grant, err error) flow.Grant {
		t.Helper()
		must.Succeed(t, err)
		if !strings.Contains(h.caller(g).Claims.Payload, `"tenant":"blue"`) {
			t.Errorf("claims %s", h.caller(g).Claims.Payload)
		}
		return g
	}
	g := claimed(h.confirmed("mia@example.org"), nil)
	g = claimed(h.signedIn("mia@example.org"), nil)
	g = claimed(h.refresh(g.RefreshToken))
	if got := c.since(); got != "before claims:otp right claims:password claims:token_refresh" {
		t.Error(got)
	}
	app := h.app(g, "app")
	challenge := h.challenge(g, app)
	c.since()

	c.refuse(&refusal.Refusal{Kind: refusal.KindFailed, Status: 422, Code: refusal.CodeHookTimeout, Msg: "away"})
	_, err := h.refresh(g.RefreshToken)
	if kindOf(err) != refusal.KindUnavailable {
		t.Errorf("a refresh while the hook is away: %v", err)
	}
	h.set(func(s *flow.Settings) { s.Factors.Attempt = nil })
	refused(t, must.ErrOf(h.answer(g, app, challenge, h.code(app))), "hook_timeout: away")
	if l := h.level(g); l != "aal1 password" {
		t.Error(l)
	}
	h.set(func(s *flow.Settings) { s.Hooks.Password = nil })
	refused(t, h.signIn("mia@example.org", "sesame"), "hook_timeout: away")
	if got := h.ended(g.User.ID); got != "hook  " {
		t.Errorf("sessions ended by %q", got)
	}
	c.refuse(no)
	refused(t, must.ErrOf(h.refresh(g.RefreshToken)), saidNo)
	c.refuse(nil)
	g = claimed(h.refresh(g.RefreshToken))
	if l := h.level(claimed(h.verified(g, app), nil)); l != "aal2 totp password" {
		t.Error(l)
	}

	// An answer that is no set of claims is never signed.
	for _, bad := range []string{`null`, `{}`, `[]`, `{"sub":1}`} {
		h.set(func(s *flow.Settings) {
			s.Hooks.Claims = func(context.Context, flow.ClaimsQuestion) (json.RawMessage, error) {
				return json.RawMessage(bad), nil
			}
		})
		_, err := h.SignUpAnonymous(t.Context(), browser, nil)
		refused(t, err, "unexpected_failure: output claims do not conform to the expected schema")
	}
}

// A wrong password counts, whatever the hook says; a refusal ends sessions only where it is wanted.
func TestHooks_password(t *testing.T) {
	t.Parallel()
	h, c := hooked(t, func(s *flow.Settings) { s.Passwords.TriesPerAccount = 2 })
	g := h.confirmed("mia@example.org")
	c.verdict = flow.Verdict{Reject: true, Message: "ask support"}
	refused(t, h.signIn("mia@example.org", "sesame"), "invalid_credentials: ask support")
	refused(t, h.signIn("mia@example.org", "wrong"), "invalid_credentials: ask support")
	h.caller(g)
	c.verdict = flow.Verdict{Reject: true, SignOut: true}
	refused(t, h.signIn("mia@example.org", "wrong"),
		"invalid_credentials: Further password verification attempts will be rejected.")
	if got := h.ended(g.User.ID); got != store.EndedByVerdict {
		t.Errorf("ended by %q", got)
	}
	c.since()
	refused(t, h.signIn("mia@example.org", "sesame"),
		"over_request_rate_limit: Too many wrong passwords for this address. Wait, or sign in with a link or a code.")
	refused(t, h.signIn("nobody@example.org", "sesame"), "invalid_credentials: Invalid login credentials")
	if got := c.since(); got != "" {
		t.Errorf("asked %s", got)
	}
}

package account_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/admin"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) {
	workers()
	storetest.Watched()
	goleak.VerifyTestMain(m, testdb.IgnoreServers(), goleak.IgnoreCurrent())
}

// noon is the time at which every test begins.
var noon = time.Date(2031, 3, 4, 12, 0, 0, 123456000, time.UTC)

// house is the flows over a database of their own, with a clock that stands still.
type house struct {
	*flow.Core
	*account.Accounts
	*oauth.Identities
	*factor.Factors
	*admin.Users
	t    *testing.T
	db   *store.DB
	root *secret.Root
	keys *token.Live
	mu   sync.Mutex
	now  time.Time
	s    flow.Settings

	log    bytes.Buffer // read it while no request is under way
	unsent []string     // channel and reason
	opened []string     // the methods of the sessions that were opened
}

var browser = flow.RequestInfo{IP: "192.0.2.7", UserAgent: "browser", RedirectTo: "https://app.example.org/home",
	BaseURL: "https://auth.example.org"}

// settings are the daemon's defaults, with everything switched on that can be signed in with, and no
// pauses between mails.
func settings() flow.Settings {
	links, err := mail.NewLinks(mail.Paths{})
	if err != nil {
		panic(err)
	}
	return flow.Settings{
		SiteURL: "https://app.example.org", BaseURL: "https://auth.example.org",
		Audience: "authenticated", Role: "authenticated", Issuer: "https://auth.example.org", AccessLife: time.Hour,
		KnownPlaces: true, ClaimUnproven: true, CodesPerAccount: 30,
		AdminRoles: []string{"service_role", "supabase_admin"}, Anonymous: true, FlowLife: 5 * time.Minute,
		Email: flow.EmailSettings{
			Enabled: true, MagicLink: true, Configured: true, SecureChange: true, ChangeEndsSessions: true,
			OTPLife: time.Hour, OTPLength: 6, Sent: flow.Rate{N: 1000, Per: time.Hour}, Links: links,
		},
		Phone: flow.PhoneSettings{
			Enabled: true, Configured: true, OTPLife: 5 * time.Minute, OTPLength: 6,
			Sent: flow.Rate{N: 1000, Per: time.Hour},
		},
		Passwords: flow.PasswordSettings{
			Policy: password.NewPolicy(6, "", false), PolicyForAdmin: true, TriesPerAccount: 20,
			ChangeEndsSessions: true,
		},
		Sessions: flow.SessionSettings{Rotation: true, ReuseInterval: 10 * time.Second, RefreshBurst: 60},
		Factors: flow.FactorSettings{
			TOTP:          flow.FactorSwitches{Enroll: true, Verify: true},
			Phone:         flow.FactorSwitches{Enroll: true, Verify: true},
			ChallengeLife: 5 * time.Minute, UnverifiedLife: 5 * time.Minute, MaxEnrolled: 10, MaxVerified: 10,
			OTPLength: 6,
		},
	}
}

// workers are shared: every test binary hashes on two threads, as cheaply as bcrypt allows.
var workers = sync.OnceValue(func() *password.Workers {
	params, err := password.ParseParams("bcrypt:4")
	if err != nil {
		panic(err)
	}
	return password.NewWorkers(password.Options{Workers: 2, Queue: 1000, Params: params})
})

func open(t *testing.T, change ...func(*flow.Settings)) *house {
	t.Helper()
	return openOn(t, storetest.Open(t), change...)
}

func openOn(t *testing.T, db *store.DB, change ...func(*flow.Settings)) *house {
	t.Helper()
	h := &house{t: t, db: db, root: secret.NewRoot("root key"), now: noon, s: settings(), keys: new(token.Live)}
	for _, f := range change {
		f(&h.s)
	}
	shared, err := token.NewSecret("", []byte("a shared secret of at least 32 bytes"))
	must.Succeed(t, err)
	set, err := token.NewSet(token.SetConfig{Secret: shared, AcceptSecret: true, SignWithSecret: true,
		Issuer: h.s.Issuer})
	must.Succeed(t, err)
	h.keys.Store(set)
	h.use(flow.New(flow.Options{
		DB: db, Keys: h.keys, Refresh: token.NewRefreshCodec(h.root.Keys(secret.Refresh)), Root: h.root,
		Passwords: workers(),
		Now:       h.clock, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
		SignedIn: func(method string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.opened = append(h.opened, method)
		},
		Unsent: func(channel, reason string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.unsent = append(h.unsent, channel+" "+reason)
		},
	}, h.s))
	return h
}

// use makes the flows over what they share.
func (h *house) use(k *flow.Core) {
	h.Core, h.Accounts, h.Identities = k, account.New(k), oauth.New(k)
	h.Factors, h.Users = factor.New(k), admin.New(k)
}

func (h *house) clock() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *house) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// set changes the settings in force.
func (h *house) set(f func(*flow.Settings)) {
	f(&h.s)
	h.Apply(h.s)
}

// under changes the settings in force until back is called.
func (h *house) under(changes ...func(*flow.Settings)) (back func()) {
	old := h.s
	for _, c := range changes {
		h.set(c)
	}
	return func() { h.set(func(s *flow.Settings) { *s = old }) }
}

// refused compares an error with "code: message"; "" is none.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		got = r.Code + ": " + r.Msg
	} else if err != nil {
		got = "(no refusal) " + err.Error()
	}
	if got != want {
		t.Errorf("refused with\n%s, want\n%s", got, want)
	}
}

// refusedAs is refused, and compares the kind too.
func refusedAs(t *testing.T, err error, kind refusal.Kind, want string) {
	t.Helper()
	refused(t, err, want)
	if kindOf(err) != kind {
		t.Errorf("%v is of kind %d, want %d", err, kindOf(err), kind)
	}
}

// accepted wants no error.
func accepted(t *testing.T, err error) {
	t.Helper()
	refused(t, err, "")
}

func kindOf(err error) refusal.Kind {
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		return r.Kind
	}
	return 0
}

// message is a mail or SMS as its recipient gets it.
type message struct {
	To, Kind, Code, Link, Hash, Text string
	mail.Payload
}

// messages returns all that wait in the outbox, oldest first.
func (h *house) messages() []message {
	h.t.Helper()
	list, err := storetest.Claim(h.t.Context(), h.db, h.clock(), 0, 1000)
	must.Succeed(h.t, err)
	slices.SortStableFunc(list, func(x, y store.Message) int { return x.CreatedAt.Compare(y.CreatedAt) })
	var out []message
	for _, m := range list {
		text, _, err := h.root.Open(secret.Outbox, m.Payload, m.ID[:])
		must.Succeed(h.t, err)
		l := message{Kind: m.Kind}
		if m.Channel == mail.ChannelSMS {
			var v mail.SMS
			h.decode(text, &v)
			l.To, l.Code, l.Text = v.To, v.Token, v.Text
		} else {
			h.decode(text, &l.Payload)
			l.To, l.Code, l.Link, l.Hash = l.Payload.To, l.Vars.Token, l.Vars.ConfirmationURL, l.Vars.TokenHash
		}
		out = append(out, l)
	}
	return out
}

func (h *house) decode(text []byte, v any) {
	h.t.Helper()
	must.Succeed(h.t, json.Unmarshal(text, v))
}

// newest is the latest message of that kind.
func (h *house) newest(kind, to string) message {
	h.t.Helper()
	all := h.messages()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Kind == kind && all[i].To == to {
			return all[i]
		}
	}
	h.t.Fatalf("no %s to %s among %d messages", kind, to, len(all))
	return message{}
}

// trail is the audit log's actions, oldest first.
func (h *house) trail() string {
	h.t.Helper()
	rows, _, err := h.db.AuditLog(h.t.Context(), store.AuditFilter{Limit: 1000})
	must.Succeed(h.t, err)
	var actions []string
	for _, r := range rows {
		actions = append([]string{r.Action.String()}, actions...)
	}
	return strings.Join(actions, " ")
}

func (h *house) user(id uuid.UUID) store.User {
	h.t.Helper()
	u, err := h.db.User(h.t.Context(), id)
	must.Succeed(h.t, err)
	return u
}

// confirmed makes a user with a confirmed address and the password "sesame".
func (h *house) confirmed(email string) flow.Grant {
	h.t.Helper()
	must.Succeed(h.t, must.ErrOf(h.SignUp(h.t.Context(), browser, flow.SignUp{Email: email, Password: "sesame"})))
	return h.redeem("signup", h.newest("confirmation", email).Hash)
}

func (h *house) redeem(kind, hash string) flow.Grant {
	h.t.Helper()
	v, err := h.Verify(h.t.Context(), browser, flow.Verify{Type: kind, TokenHash: hash})
	if err != nil || v.Grant == nil {
		h.t.Fatalf("verify %s: %+v, %v", kind, v, err)
	}
	return *v.Grant
}

// signIn is the error of a sign-in by e-mail and password.
func (h *house) signIn(email, pass string) error {
	_, err := h.SignInPassword(h.t.Context(), browser, account.Password{Email: email, Password: pass})
	return err
}

func (h *house) caller(g flow.Grant) flow.Principal {
	h.t.Helper()
	c, err := h.Authenticate(h.t.Context(), g.AccessToken, "", flow.Full)
	must.Succeed(h.t, err)
	return c
}

// serviceToken is one with an admin role.
func (h *house) serviceToken(role string) string {
	h.t.Helper()
	text, err := h.keys.Load().SignService(nil, role, "", h.clock(), h.clock().Add(time.Hour))
	must.Succeed(h.t, err)
	return string(text)
}

var digitsOnly = regexp.MustCompile(`^[0-9]{6}$`)

// wrong is a code that is not that one.
func wrong(code string) string {
	last := code[len(code)-1]
	return code[:len(code)-1] + fmt.Sprint((last-'0'+1)%10)
}

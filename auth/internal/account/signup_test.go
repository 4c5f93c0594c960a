package account_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func TestSignUp_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	challenge := flow.Challenge{Challenge: strings.Repeat("c", 43), Method: "s256"}
	f := func(p flow.SignUp, want string, change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refused(t, must.ErrOf(h.SignUp(t.Context(), browser, p)), want)
	}
	ok := flow.SignUp{Email: "a@b", Password: "sesame"}
	with := func(change func(*flow.SignUp)) flow.SignUp { p := ok; change(&p); return p }
	f(ok, "signup_disabled: Signups not allowed for this instance", func(s *flow.Settings) {
		s.DisableSignup = true
	})
	f(flow.SignUp{Email: "a@b"}, "validation_failed: Signup requires a valid password")
	f(with(func(p *flow.SignUp) { p.Password = strings.Repeat("x", 73) }),
		"validation_failed: Password cannot be longer than 72 characters")
	f(with(func(p *flow.SignUp) {
		p.Password = "short"
	}), "weak_password: Password should be at least 6 characters.")
	f(with(func(p *flow.SignUp) { p.Phone = "4915112345678" }),
		"validation_failed: Only an email address or phone number should be provided on signup.")
	f(flow.SignUp{Phone: "12345", Password: "sesame", Channel: "fax"},
		"validation_failed: Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported "+
			"if Twilio or Twilio Verify is used as the provider.")
	f(flow.SignUp{Phone: "12345", Password: "sesame", Challenge: challenge},
		"validation_failed: PKCE not supported for phone signups")
	f(with(func(p *flow.SignUp) { p.Challenge.Method = "s256" }),
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(with(func(p *flow.SignUp) { p.Challenge.Challenge = "c" }),
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(with(func(p *flow.SignUp) { p.Challenge = flow.Challenge{Challenge: "c", Method: "s256"} }),
		"validation_failed: code challenge has to be between 43 and 128 characters")
	f(with(func(p *flow.SignUp) {
		p.Challenge = flow.Challenge{Challenge: strings.Repeat("c", 43) + "!", Method: "S256"}
	}),
		"validation_failed: code challenge can only contain alphanumeric characters, hyphens, periods, underscores "+
			"and tildes")
	f(with(func(p *flow.SignUp) { p.Challenge = challenge; p.Challenge.Method = "md5" }),
		"validation_failed: Invalid code_challenge_method")
	f(ok, "email_provider_disabled: Email signups are disabled", func(s *flow.Settings) { s.Email.Enabled = false })
	f(flow.SignUp{Email: "a", Password: "sesame"},
		"validation_failed: Unable to validate email address: invalid format")
	f(flow.SignUp{Password: "sesame"}, "validation_failed: An email address is required")
	f(flow.SignUp{Phone: "12345", Password: "sesame"}, "phone_provider_disabled: Phone signups are disabled",
		func(s *flow.Settings) { s.Phone.Enabled = false })
	f(flow.SignUp{Phone: "0", Password: "sesame"}, "validation_failed: Invalid phone number format (E.164 required)")
	f(with(func(p *flow.SignUp) { p.Data = []byte(`[]`) }),
		"bad_json: Could not parse request body as JSON: metadata is not an object")
	f(with(func(p *flow.SignUp) { p.Data = []byte(`{"a":"\u0000"}`) }),
		"validation_failed: Metadata cannot be stored: a text holds the character U+0000")
	f(with(func(p *flow.SignUp) { p.Data = []byte(`{"a":1e999999}`) }),
		"validation_failed: Metadata cannot be stored: a number is too large or too small")
	f(with(func(p *flow.SignUp) {
		p.Data = []byte(`{"a":` + strings.Repeat("[", 30) + strings.Repeat("]", 30) + `}`)
	}), "validation_failed: Metadata cannot be stored: it is nested deeper than 24 levels")
	f(with(func(p *flow.SignUp) { p.Data = []byte(`{"a":"bcdef"}`) }),
		"validation_failed: Metadata cannot be larger than 8 bytes", func(s *flow.Settings) {
			s.MetadataMaxBytes = 8
		})
	f(ok, "unexpected_failure: Error sending confirmation email", func(s *flow.Settings) {
		s.Email.Configured = false
	})
	f(flow.SignUp{Phone: "12345", Password: "sesame"},
		"sms_send_failed: Error sending confirmation OTP to provider: no SMS provider is configured",
		func(s *flow.Settings) { s.Phone.Configured = false })
	f(ok, `email_address_not_authorized: Email address "a@b" cannot be used as it is not authorized`,
		func(s *flow.Settings) { s.Email.Authorized = []string{"c@d"} })
	f(ok, "over_email_send_rate_limit: email rate limit exceeded", func(s *flow.Settings) { s.Email.Sent.N = 0 })
	if got := h.trail() + " " + strings.Repeat("x", len(h.messages())); got != " " {
		t.Errorf("a refused sign-up left %q", got)
	}
	f(ok, "", func(s *flow.Settings) { s.Email.Authorized = []string{"c@d", "A+x@b"} })
	_, err := h.SignUp(t.Context(), flow.RequestInfo{Aud: "other"}, ok)
	refused(t, err, "validation_failed: Users cannot sign up for this audience")
}

// The answers for a new, a pending and a confirmed address do not differ.
func TestSignUp_decoyID(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	first := func(email string) store.User {
		t.Helper()
		got, err := h.SignUp(t.Context(), browser,
			flow.SignUp{Email: email, Password: "another", Data: []byte(`{"nick":"x","email":"mine"}`)})
		if err != nil || got.Grant != nil {
			t.Fatal(got, err)
		}
		return got.User
	}
	fresh, pending, taken := first("new@example.org"), first("new@example.org"), first("mia@example.org")
	if made := h.user(fresh.ID).Identities[0]; made.ID != fresh.Identities[0].ID {
		t.Errorf("the stored identity is %s, shown was %s", made.ID, fresh.Identities[0].ID)
	}
	ids := cmp.Options{
		cmpopts.IgnoreFields(store.User{}, "ID", "Email", "UserMetadata"),
		cmpopts.IgnoreFields(store.Identity{}, "ID", "UserID", "ProviderID", "Email", "Data"),
	}
	if diff := cmp.Diff(fresh, pending, ids); diff != "" || fresh.ID != pending.ID {
		t.Errorf("new and pending: %s", diff)
	}
	if diff := cmp.Diff(fresh, taken, ids); diff != "" {
		t.Errorf("new and taken: %s", diff)
	}
	if again := first("mia@example.org"); again.ID != taken.ID || taken.ID.Version() != 4 ||
		taken.ID == h.user(fresh.ID).ID {
		t.Errorf("faux ids %s and %s", taken.ID, again.ID)
	}
	var shown map[string]any
	h.decode(taken.UserMetadata, &shown)
	want := map[string]any{"sub": taken.ID.String(), "email": "mia@example.org", "email_verified": false,
		"phone_verified": false, "nick": "x"}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Error(diff)
	}
	if string(taken.Identities[0].Data) != string(taken.UserMetadata) || taken.Identities[0].UserID != taken.ID ||
		taken.Identities[0].ProviderID != taken.ID.String() {
		t.Errorf("the invented identity: %+v", taken.Identities[0])
	}
	h.set(func(s *flow.Settings) { s.RevealExisting = true })
	if u := first("mia@example.org"); u.Identities != nil {
		t.Errorf("identities %v", u.Identities)
	}
	if u := first("new@example.org"); len(u.Identities) != 1 {
		t.Errorf("identities %v", u.Identities)
	}
}

// The same round trips for a new, a pending and a confirmed address, by mail and phone.
func TestSignUp_Statements(t *testing.T) {
	db, trips := storetest.Counting(t)
	h := openOn(t, db, func(s *flow.Settings) { s.Email.ConfirmationInterval = time.Minute })
	up := func(p flow.SignUp) func() {
		return func() {
			t.Helper()
			h.pass(time.Hour)
			p.Password = "sesame"
			must.Succeed(t, must.ErrOf(h.SignUp(t.Context(), browser, p)))
		}
	}
	h.confirmed("mia@example.org")
	for range 2 { // so that all is prepared
		up(flow.SignUp{Phone: "4915112345678"})()
		up(flow.SignUp{Email: "other@example.org"})()
	}
	for _, p := range []flow.SignUp{{Email: "new@example.org"}, {Email: "new@example.org"},
		{Email: "mia@example.org"},
		{Phone: "4915112345679"}, {Phone: "4915112345679"}} {
		if n := trips.During(up(p)); n != 2 {
			t.Errorf("sign-up of %s%s takes %d round trips, want 2", p.Email, p.Phone, n)
		}
	}
	late := func() {
		err := h.trySignUp(flow.SignUp{Email: "new@example.org", Password: "another"})
		if kindOf(err) != refusal.KindLimited {
			t.Errorf("got %v, want a pause", err)
		}
	}
	up(flow.SignUp{Email: "new@example.org"})()
	late()
	if n := trips.During(late); n != 2 {
		t.Errorf("a sign-up within the pause takes %d round trips, want 2: one writes", n)
	}
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	up(flow.SignUp{Email: "auto@example.org"})()
	if n := trips.During(up(flow.SignUp{Email: "auto2@example.org"})); n != 2 {
		t.Errorf("sign-up with autoconfirm takes %d round trips, want 2", n)
	}
}

func TestSignUp_limits(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.ConfirmationInterval, s.Email.Sent = 15*time.Minute, flow.Rate{N: 3, Per: time.Hour}
	})
	h.confirmed("mia@example.org")
	h.pass(time.Hour)
	up := func(email string) error {
		_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: email, Password: "sesame"})
		return err
	}
	const wait = "over_email_send_rate_limit: For security purposes, you can only request this after 900 seconds."
	for _, email := range []string{"mia@example.org", "new@example.org"} {
		accepted(t, up(email))
		refused(t, up(email), wait)
	}
	h.pass(899*time.Second + time.Millisecond)
	refused(t, up("mia@example.org"),
		"over_email_send_rate_limit: For security purposes, you can only request this after 1 seconds.")
	h.pass(time.Second)
	// The known address took its share too: one of three is left, and a bit.
	accepted(t, up("new@example.org"))
	const over = "over_email_send_rate_limit: email rate limit exceeded"
	refused(t, up("third@example.org"), over)
	refused(t, up("mia@example.org"), over)
}

// A hundred concurrent sign-ups create one user; the others are refused.
func TestSignUp_parallel(t *testing.T) {
	t.Parallel()
	f := func(want string, change func(*flow.Settings)) {
		t.Helper()
		h := open(t, change)
		var ok, told atomic.Int64
		await.Together(100, func(int) {
			_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
			if err == nil {
				ok.Add(1)
				return
			}
			told.Add(1)
			refused(t, err, want)
		})
		users, _, err := h.db.Users(t.Context(), store.UsersFilter{Aud: "authenticated", Limit: 10})
		if len(users) != 1 || err != nil || ok.Load() != 1 {
			t.Errorf("%d users, %d times ok, %v", len(users), ok.Load(), err)
		}
	}
	f("over_email_send_rate_limit: For security purposes, you can only request this after 900 seconds.",
		func(s *flow.Settings) { s.Email.ConfirmationInterval = 15 * time.Minute })
	f("user_already_exists: User already registered", func(s *flow.Settings) { s.Email.Autoconfirm = true })
}

func TestSignUp_autoconfirm(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.Autoconfirm, s.Email.Configured = true, false })
	got, err := h.SignUp(t.Context(), browser,
		flow.SignUp{Email: "Mia@Example.org", Password: "sesame", Data: []byte(`{"nick":"mi"}`)})
	if err != nil || got.Grant == nil {
		t.Fatal(got, err)
	}
	stored := h.user(got.User.ID)
	stored.PasswordHash = got.User.PasswordHash
	same := cmp.Transformer("json", func(m json.RawMessage) (v any) { json.Unmarshal(m, &v); return v })
	if diff := cmp.Diff(stored, got.User, same); diff != "" {
		t.Errorf("answered is not what is stored: %s", diff)
	}
	c := h.caller(*got.Grant)
	if c.Session.ID != got.Grant.Session || c.Claims.Email != "mia@example.org" ||
		c.Claims.AMR[0].Method != "password" {
		t.Errorf("%+v", c)
	}
	accepted(t, h.signIn("mia@example.org", "sesame"))
	_, err = h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
	refused(t, err, "user_already_exists: User already registered")
	if want := "user_signedup login login user_repeated_signup"; h.trail() != want {
		t.Errorf("trail %s, want %s", h.trail(), want)
	}
	if want := []string{"password", "password"}; !slices.Equal(h.opened, want) {
		t.Errorf("sign-ins counted: %v, want %v", h.opened, want)
	}
	// An unconfirmed account from before becomes the new user's, unless it has a password.
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm, s.Email.Configured = false, true })
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "first one"})))
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	got, err = h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "second one"})
	accepted(t, err)
	if len(got.User.Identities) != 1 || got.User.EmailConfirmedAt.IsZero() {
		t.Errorf("%+v", got.User)
	}
	accepted(t, h.signIn("tom@example.org", "second one"))
	refused(t, h.signIn("tom@example.org", "first one"), "invalid_credentials: Invalid login credentials")
	// A banned one does not: it gets no session while the ban lasts.
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = false })
	h.signUp("eve@example.org", "first one", "")
	_, err = h.AdminUpdate(t.Context(), browser, service, h.idOf("eve@example.org"), flow.Attributes{BanDuration: new("1h")})
	accepted(t, err)
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	_, err = h.SignUp(t.Context(), browser, flow.SignUp{Email: "eve@example.org", Password: "second one"})
	refused(t, err, "user_already_exists: User already registered")
}

func TestSignUpAnonymous(t *testing.T) {
	t.Parallel()
	h := open(t)
	g, err := h.SignUpAnonymous(t.Context(), browser, []byte(`{"a":1}`))
	must.Succeed(t, err)
	c := h.caller(g)
	if !c.User.IsAnonymous || !c.Claims.IsAnonymous || c.Claims.AMR[0].Method != "anonymous" ||
		len(c.User.Identities) != 0 || string(c.User.UserMetadata) != `{"a": 1}` {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(h.opened, []string{"anonymous"}) {
		t.Errorf("sign-ins counted: %v", h.opened)
	}
	h.set(func(s *flow.Settings) { s.DisableSignup = true })
	_, err = h.SignUpAnonymous(t.Context(), browser, nil)
	refused(t, err, "signup_disabled: Signups not allowed for this instance")
	h.set(func(s *flow.Settings) { s.Anonymous = false })
	_, err = h.SignUpAnonymous(t.Context(), browser, nil)
	refused(t, err, "anonymous_provider_disabled: Anonymous sign-ins are disabled")
}

// Whatever a client sends as metadata is stored or refused, and is in a token that others can read.
func TestMetadata(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(data string, stored bool) {
		t.Helper()
		g, err := h.SignUpAnonymous(t.Context(), browser, []byte(data))
		if !stored {
			if kindOf(err) != refusal.KindInvalid {
				t.Errorf("%.80s: %v", data, err)
			}
			return
		}
		if err != nil {
			t.Errorf("%.80s: %v", data, err)
			return
		}
		h.caller(g)
	}
	for _, data := range []string{"", "null", "{}", `{"a":"\ud800"}`, `{"\udc00":1}`,
		`{"a":1e308,"b":-1e308,"c":1e-300,"d":-0,"e":0e999999}`, `{"a":1,"a":2}`,
		`{"":""}`, "{\"a\":\"\xff\"}", `{"a":` + strings.Repeat("9", 300) + `}`,
		`{"a":` + strings.Repeat(`{"a":`, 22) + "1" + strings.Repeat("}", 23),
		`{"a":"` + strings.Repeat("x", 1<<14) + `"}`, `{"a":"<script>&\u2028"}`} {
		f(data, true)
	}
	for _, data := range []string{"[]", "1", `"x"`, "{", "{}{}", `{"a":"\u0000"}`, `{"\u0000":1}`,
		`{"a":[{"b":"\u0000"}]}`, `{"a":1e309}`, `{"a":1e-999999}`, `{"a":1E+99999999999999999999}`,
		`{"a":` + strings.Repeat("9", 1001) + `}`, `{"a":` + strings.Repeat(`[`, 24) + strings.Repeat("]", 24) + "}"} {
		f(data, false)
	}
}

// What the templates of mails see as Data is the user_metadata of the account: the members that a sign-up brings
// and those of the service.
func TestSignUp_templates(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.set(func(s *flow.Settings) { s.Email.ConfirmationInterval, s.Email.Interval = 0, 0 })
	f := func(kind, to string, parts ...string) {
		t.Helper()
		data := string(h.newest(kind, to).Vars.Data)
		for _, part := range append(parts, `"nick":"x"`, `"email":"`+to+`"`) {
			if !strings.Contains(data, part) {
				t.Errorf("the template of the %s sees %s, without %s", kind, data, part)
			}
		}
	}
	out, err := h.SignUp(t.Context(), browser,
		flow.SignUp{Email: "mia@example.org", Password: "sesame", Data: []byte(`{"nick":"x"}`)})
	must.Succeed(t, err)
	sub := `"sub":"` + out.User.ID.String() + `"`
	f("confirmation", "mia@example.org", sub, `"email_verified":false`)
	h.pass(time.Minute)
	must.Succeed(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: "mia@example.org"})))
	f("confirmation", "mia@example.org", sub)
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	otp := flow.OTP{Email: "tom@example.org", CreateUser: true, Data: []byte(`{"nick":"x"}`)}
	must.Succeed(t, h.SendOTP(t.Context(), browser, otp))
	f("magic_link", "tom@example.org", `"email_verified":true`)
}

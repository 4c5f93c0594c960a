package account_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

func TestAdminCreate_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.create(flow.Attributes{Email: ptr("mia@example.org"), Phone: ptr("491511")})
	f := func(p flow.Attributes, kind refusal.Kind, want string, change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refusedAs(t, must.ErrOf(h.AdminCreate(t.Context(), browser, service, p)), kind, want)
	}
	with := func(change func(*flow.Attributes)) flow.Attributes {
		p := flow.Attributes{Email: ptr("new@example.org")}
		change(&p)
		return p
	}
	f(flow.Attributes{}, refusal.KindInvalid, "validation_failed: Cannot create a user without either an email or phone")
	f(flow.Attributes{Email: ptr("a")}, refusal.KindInvalid,
		"validation_failed: Unable to validate email address: invalid format")
	f(flow.Attributes{Email: ptr("MIA@example.org"), Phone: ptr("0")}, refusal.KindUnprocessable,
		"email_exists: A user with this email address has already been registered")
	f(flow.Attributes{Phone: ptr("0")}, refusal.KindInvalid,
		"validation_failed: Invalid phone number format (E.164 required)")
	f(flow.Attributes{Phone: ptr("+49 1511")}, refusal.KindUnprocessable,
		"phone_exists: Phone number already registered by another user")
	f(with(func(p *flow.Attributes) { p.Password, p.PasswordHash = ptr("sesame"), ptr("x") }), refusal.KindInvalid,
		"validation_failed: Only a password or a password hash should be provided")
	_, err := h.AdminCreate(t.Context(), browser, service, with(func(p *flow.Attributes) {
		p.PasswordHash = ptr("$argon2id$v=19$m=8,t=0,p=1$c2FsdHNhbHQ$aGFzaGhhc2g")
	}))
	if kindOf(err) != refusal.KindInvalid ||
		!strings.HasPrefix(err.Error(), "validation_failed: The password hash cannot be used: ") {
		t.Error(err)
	}
	long, short := strings.Repeat("x", 73), "short"
	f(with(func(p *flow.Attributes) { p.Password = &long }), refusal.KindInvalid,
		"validation_failed: Password cannot be longer than 72 characters", func(s *flow.Settings) {
			s.Passwords.PolicyForAdmin = false
		})
	f(with(func(p *flow.Attributes) { p.Password = &short }), refusal.KindUnprocessable,
		"weak_password: Password should be at least 6 characters.")
	f(with(func(p *flow.Attributes) { p.ID = "x" }), refusal.KindInvalid,
		"validation_failed: ID must conform to the uuid v4 format")
	f(with(func(p *flow.Attributes) { p.ID = uuid.Nil.String() }), refusal.KindInvalid,
		"validation_failed: ID cannot be a nil uuid")
	f(with(func(p *flow.Attributes) { p.ID = mia.ID.String() }), refusal.KindUnprocessable,
		"validation_failed: A user with this ID already exists")
	f(with(func(p *flow.Attributes) { p.BanDuration = ptr("1d") }), refusal.KindInvalid,
		`validation_failed: invalid format for ban duration: time: unknown unit "d" in duration "1d"`)
	f(with(func(p *flow.Attributes) { p.BanDuration = ptr("-1h") }), refusal.KindInvalid,
		"validation_failed: invalid format for ban duration: it is negative")
	f(with(func(p *flow.Attributes) { p.AppMetadata = []byte(`1`) }), refusal.KindInvalid,
		"bad_json: Could not parse request body as JSON: metadata is not an object")
	f(with(func(p *flow.Attributes) { p.Password = &short }), 0, "", func(s *flow.Settings) {
		s.Passwords.PolicyForAdmin = false
	})
	f(flow.Attributes{Email: ptr("mia@example.org"), Aud: "other"}, 0, "")
	f(with(func(p *flow.Attributes) { p.Role = ptr(strings.Repeat("x", 256)) }), refusal.KindInvalid,
		"validation_failed: Role cannot be longer than 255 bytes")
	f(with(func(p *flow.Attributes) { p.Aud = strings.Repeat("x", 256) }), refusal.KindInvalid,
		"validation_failed: Audience cannot be longer than 255 bytes")
	f(flow.Attributes{Email: ptr("wide@example.org"), Role: ptr(strings.Repeat("x", 255)),
		Aud: strings.Repeat("y", 255)}, 0, "")
	stranger := browser
	stranger.Aud = strings.Repeat("y", 256)
	_, err = h.Invite(t.Context(), stranger, service, flow.Invitation{Email: "far@example.org"})
	refused(t, err, "validation_failed: Audience cannot be longer than 255 bytes")
	_, err = h.GenerateLink(t.Context(), stranger, service,
		flow.LinkRequest{Type: "invite", Email: "far@example.org"})
	refused(t, err, "validation_failed: Audience cannot be longer than 255 bytes")
}

func TestAdminCreate(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.DisableSignup, s.Email.Enabled = true, true })
	id := uuid.NewString()
	u := h.create(flow.Attributes{
		ID: id, Email: ptr("Mia@example.org"), Phone: ptr("+491511"), Password: ptr("sesame"), EmailConfirm: ptr(true),
		PhoneConfirm: ptr(false),
		UserMetadata: []byte(`{"nick":"x"}`), AppMetadata: []byte(`{"plan":"gold","provider":"ours"}`),
		Role:        ptr("editor"),
		BanDuration: ptr("1h"),
	})
	got := h.user(u.ID)
	if got.ID.String() != id || got.Role != "editor" || got.Email != "mia@example.org" ||
		got.Phone != "491511" || got.EmailConfirmedAt != h.now || !got.PhoneConfirmedAt.IsZero() ||
		got.BannedUntil != h.now.Add(time.Hour) || len(got.Identities) != 2 {
		t.Errorf("%+v", got)
	}
	if string(got.UserMetadata) != `{"nick": "x", "email_verified": true}` ||
		string(got.AppMetadata) != `{"plan": "gold", "provider": "ours", "providers": ["email", "phone"]}` {
		t.Errorf("%s, %s", got.UserMetadata, got.AppMetadata)
	}
	for _, i := range got.Identities {
		if want := i.Provider == "email"; strings.Contains(string(i.Data), `_verified": true`) != want {
			t.Errorf("%s", i.Data)
		}
	}
	refused(t, h.signIn("mia@example.org", "sesame"), "user_banned: User is banned")
	h.pass(time.Hour)
	accepted(t, h.signIn("mia@example.org", "sesame"))
	_, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: "491511", Password: "sesame"})
	refused(t, err, "phone_not_confirmed: Phone not confirmed")
	none := h.create(flow.Attributes{Email: ptr("tom@example.org"), EmailConfirm: ptr(true)})
	if h.user(none.ID).PasswordHash != "" {
		t.Error("a password out of nowhere")
	}
	rows, _, err := h.AuditLog(t.Context(), store.AuditFilter{Action: "user_signedup", Limit: 10})
	if err != nil || len(rows) != 2 || rows[1].ActorRole != "service_role" ||
		rows[1].Actor != uuid.Nil || rows[1].IP != browser.IP || !strings.Contains(string(rows[1].Traits), id) {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestAdminUpdate(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("tom@example.org")
	g := h.confirmed("mia@example.org")
	f := func(p flow.Attributes, want string) store.User {
		t.Helper()
		u, err := h.AdminUpdate(t.Context(), browser, service, g.User.ID, p)
		refused(t, err, want)
		return u
	}
	f(flow.Attributes{Email: ptr("a")}, "validation_failed: Unable to validate email address: invalid format")
	f(flow.Attributes{Phone: ptr("0")}, "validation_failed: Invalid phone number format (E.164 required)")
	f(flow.Attributes{Role: ptr(strings.Repeat("x", 256))},
		"validation_failed: Role cannot be longer than 255 bytes")
	f(flow.Attributes{BanDuration: ptr("soon")},
		`validation_failed: invalid format for ban duration: time: invalid duration "soon"`)
	f(flow.Attributes{Password: ptr(strings.Repeat("x", 73))},
		"validation_failed: Password cannot be longer than 72 characters")
	f(flow.Attributes{Password: ptr("short")}, "weak_password: Password should be at least 6 characters.")
	f(flow.Attributes{Email: ptr("tom@example.org")},
		"email_exists: A user with this email address has already been registered")
	h.create(flow.Attributes{Phone: ptr("491511")})
	f(flow.Attributes{Phone: ptr("491511")}, "phone_exists: Phone number already registered by another user")
	_, err := h.AdminUpdate(t.Context(), browser, service, uuid.New(), flow.Attributes{})
	refused(t, err, "user_not_found: User not found")

	u := f(flow.Attributes{Role: ptr("editor"), UserMetadata: []byte(`{"nick":"x","none":null}`),
		AppMetadata: []byte(`{"plan":"gold"}`)}, "")
	if u.Role != "editor" || strings.Contains(string(u.UserMetadata), "none") ||
		!strings.Contains(string(u.AppMetadata), "gold") || !strings.Contains(string(u.AppMetadata), "providers") {
		t.Errorf("%+v", u)
	}
	u = f(flow.Attributes{BanDuration: ptr("24h")}, "")
	if u.BannedUntil != h.now.Add(24*time.Hour) {
		t.Errorf("banned until %v", u.BannedUntil)
	}
	f(flow.Attributes{BanDuration: ptr("0s")}, "")
	accepted(t, must.ErrOf(h.Authenticate(t.Context(), g.AccessToken, "", flow.Full)))

	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	u = f(flow.Attributes{Email: ptr("new@example.org")}, "")
	if u.Email != "new@example.org" || u.EmailConfirmedAt != g.User.EmailConfirmedAt ||
		len(u.Identities) != 1 || u.Identities[0].Email != "new@example.org" ||
		!strings.Contains(string(u.Identities[0].Data), `"email_verified": true`) {
		t.Errorf("%+v", u)
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})), linkExpired)
	h.pass(time.Second)
	u = f(flow.Attributes{Phone: ptr("491512"), PhoneConfirm: ptr(true), EmailConfirm: ptr(true)}, "")
	if u.PhoneConfirmedAt != h.now ||
		len(u.Identities) != 2 || !strings.Contains(string(u.Identities[0].Data), `"email_verified": true`) {
		t.Errorf("%+v", u)
	}
	f(flow.Attributes{Password: ptr("another")}, "")
	refused(t, must.ErrOf(h.refresh(g.RefreshToken)), notFound)
	accepted(t, h.signIn("new@example.org", "another"))
	f(flow.Attributes{Role: ptr("editor")}, "") // as it is
	for _, want := range []string{"user_banned", "user_unbanned", "user_updated_password", "user_role_changed"} {
		if strings.Count(h.trail(), want) != 1 {
			t.Errorf("%s is not once in %s", want, h.trail())
		}
	}
}

// ended are the reasons of a user's sessions, newest first; "" is one that lives.
func (h *house) ended(id uuid.UUID) string {
	h.t.Helper()
	list, err := h.db.Sessions(h.t.Context(), id)
	must.Succeed(h.t, err)
	var reasons []string
	for _, v := range list {
		reasons = append(reasons, v.EndedReason)
	}
	return strings.Join(reasons, " ")
}

// Replacing an address of a user ends all sessions of the user at once.
func TestAdminUpdate_endsSessions(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(who string, p flow.Attributes, want string, change ...func(*flow.Settings)) {
		t.Helper()
		g := h.confirmed(who)
		if p.Phone != nil {
			accepted(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, g.User.ID,
				flow.Attributes{Phone: ptr("4915" + (*p.Phone)[4:])})))
		}
		if got := h.ended(g.User.ID); got != "" {
			t.Fatalf("%s: ended as %q before", who, got)
		}
		back := h.under(change...)
		accepted(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, g.User.ID, p)))
		back()
		if got := h.ended(g.User.ID); got != want {
			t.Errorf("%s: ended as %q, want %q", who, got, want)
		}
		access, refresh := "session_not_found: Session from session_id claim in JWT does not exist", notFound
		if want == "" {
			access, refresh = "", ""
		}
		refused(t, must.ErrOf(h.Authenticate(t.Context(), g.AccessToken, "", flow.Full)), access)
		refused(t, must.ErrOf(h.refresh(g.RefreshToken)), refresh)
	}
	keep := func(s *flow.Settings) { s.Email.ChangeEndsSessions = false }
	f("a@example.org", flow.Attributes{Email: ptr("a2@example.org")}, "email_changed")
	f("b@example.org", flow.Attributes{Email: ptr("b2@example.org"), EmailConfirm: ptr(true),
		Password: ptr("another")},
		"password_changed")
	f("c@example.org", flow.Attributes{Email: ptr("C@example.org"), EmailConfirm: ptr(true),
		UserMetadata: []byte(`{"a":1}`)}, "")
	f("d@example.org", flow.Attributes{Email: ptr("d2@example.org")}, "", keep)
	f("e@example.org", flow.Attributes{Phone: ptr("491611")}, "phone_changed")
	f("f@example.org", flow.Attributes{Phone: ptr("491612")}, "", keep)
	f("g@example.org", flow.Attributes{BanDuration: ptr("0s"), Role: ptr("editor")}, "")
	// A first address takes the place of none.
	g, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	accepted(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, g.User.ID,
		flow.Attributes{Email: ptr("h@example.org"), Phone: ptr("491613")})))
	if got := h.ended(g.User.ID); got != "" {
		t.Errorf("a first address ended a session as %q", got)
	}
}

// The log names users by ID. It shows their addresses next to it while they have them, and keeps none afterwards.
func TestAuditLog_forgets(t *testing.T) {
	t.Parallel()
	h := open(t)
	shown := func(who ...string) {
		t.Helper()
		rows, _, err := h.AuditLog(t.Context(), store.AuditFilter{Limit: 100})
		must.Succeed(t, err)
		var all strings.Builder
		for _, r := range rows {
			fmt.Fprintln(&all, string(r.Traits))
		}
		for _, text := range []string{"mia@example.org", "new@example.org", "491511"} {
			if strings.Contains(all.String(), text) != slices.Contains(who, text) {
				t.Errorf("%s is in the log, or isn't:\n%s", text, all.String())
			}
		}
	}
	ctx := t.Context()
	made := h.create(flow.Attributes{Email: ptr("mia@example.org"), Phone: ptr("491511")}).ID
	shown("mia@example.org", "491511")
	_, err := h.AdminUpdate(ctx, browser, service, made,
		flow.Attributes{Email: ptr("new@example.org"), BanDuration: ptr("1h")})
	accepted(t, err)
	shown("new@example.org", "491511")
	u, err := h.Invite(ctx, browser, service, flow.Invitation{Email: "mia@example.org"})
	accepted(t, err)
	for _, typ := range []string{"invite", "magiclink", "recovery"} {
		_, err = h.GenerateLink(ctx, browser, service, flow.LinkRequest{Type: typ, Email: "mia@example.org"})
		accepted(t, err)
	}
	shown("mia@example.org", "new@example.org", "491511")
	accepted(t, h.AdminDelete(ctx, browser, service, u.ID, false))
	shown("new@example.org", "491511")
	accepted(t, h.AdminDelete(ctx, browser, service, made, true))
	shown()
}

// A deleted user's sessions keep the reason of their end, and no data of the user.
func TestAdminDelete_endsSessions(t *testing.T) {
	t.Parallel()
	h := open(t)
	gone := h.confirmed("mia@example.org")
	accepted(t, h.SignOut(t.Context(), browser, gone.AccessToken, "local", true))
	h.pass(time.Second)
	g := h.again("mia@example.org")
	accepted(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, true))
	if got := h.ended(g.User.ID); got != "deleted logout" {
		t.Errorf("ended as %q", got)
	}
	list, err := h.UserSessions(t.Context(), g.User.ID)
	for _, v := range list {
		if v.UserAgent != "" || v.IP != "" || !v.Ended() {
			t.Errorf("%+v", v)
		}
	}
	if len(list) != 2 || list[0].EndedAt != h.now || list[1].EndedAt == h.now {
		t.Errorf("%+v, %v", list, err)
	}
	_, err = h.Authenticate(t.Context(), g.AccessToken, "", flow.ReadUser)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
	refused(t, must.ErrOf(h.refresh(g.RefreshToken)), notFound)
	accepted(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, false))
	if got := h.ended(g.User.ID); got != "" {
		t.Errorf("sessions outlive their user: %q", got)
	}
}

// A confirmation by an administrator takes the password and data of a sign-up that is alone.
func TestAdminUpdate_confirms(t *testing.T) {
	t.Parallel()
	h := open(t)
	l := h.signUp("mia@example.org", "second one", `{"nick":"two"}`)
	page, total, err := h.AdminUsers(t.Context(), store.UsersFilter{Email: "mia@example.org", Limit: 5, Count: true})
	if err != nil || total != 1 {
		t.Fatal(total, err)
	}
	id := page[0].ID
	u, err := h.AdminUpdate(t.Context(), browser, service, id, flow.Attributes{EmailConfirm: ptr(true)})
	if err != nil || u.EmailConfirmedAt.IsZero() || !strings.Contains(string(u.UserMetadata), `"nick": "two"`) ||
		!strings.Contains(string(u.UserMetadata), `"email_verified": true`) {
		t.Fatalf("%+v, %v", u, err)
	}
	accepted(t, h.signIn("mia@example.org", "second one"))
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash})), linkExpired)

	g, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	u, err = h.AdminUpdate(t.Context(), browser, service, g.User.ID, flow.Attributes{Email: ptr("ann@example.org")})
	if err != nil || !u.IsAnonymous {
		t.Errorf("%+v, %v", u, err)
	}
	u, err = h.AdminUpdate(t.Context(), browser, service, g.User.ID, flow.Attributes{EmailConfirm: ptr(true)})
	if err != nil || u.IsAnonymous || u.EmailConfirmedAt.IsZero() {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestAdminDelete(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	u, err := h.AdminUpdate(t.Context(), browser, service, g.User.ID,
		flow.Attributes{Phone: ptr("491511"), UserMetadata: []byte(`{"full_name":"Mia"}`)})
	accepted(t, err)
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	for range 2 {
		accepted(t, h.AdminDelete(t.Context(), browser, service, u.ID, true))
		got, err := h.AdminUser(t.Context(), u.ID)
		if err != nil || got.DeletedAt != h.now || strings.Contains(got.Email, "mia") ||
			got.Email == "" || len(got.Phone) != 15 || got.PasswordHash != "" ||
			string(got.UserMetadata) != "{}" || string(got.AppMetadata) != "{}" || got.Identities[0].Email != "" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, m := range h.messages() {
		if m.To == "mia@example.org" {
			t.Errorf("a %s still waits", m.Kind)
		}
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})), linkExpired)
	refused(t, h.signIn("mia@example.org", "sesame"), "invalid_credentials: Invalid login credentials")
	_, err = h.AdminUpdate(t.Context(), browser, service, u.ID, flow.Attributes{Email: ptr("back@example.org")})
	refused(t, err, "user_not_found: User not found")
	again := h.confirmed("mia@example.org")
	if again.User.ID == u.ID {
		t.Error("the erased account came back")
	}
	accepted(t, h.AdminDelete(t.Context(), browser, service, u.ID, false))
	refused(t, must.ErrOf(h.AdminUser(t.Context(), u.ID)), "user_not_found: User not found")
	refused(t, h.AdminDelete(t.Context(), browser, service, u.ID, false), "user_not_found: User not found")
	rows, _, err := h.AuditLog(t.Context(), store.AuditFilter{Action: "user_deleted", Limit: 10})
	if err != nil || len(rows) != 3 || strings.Contains(string(rows[0].Traits), "@") {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestInvite(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.DisableSignup = true
		s.Email.Interval = time.Hour
		s.Email.ConfirmationInterval = time.Hour
	})
	invite := func(email, data, want string) store.User {
		t.Helper()
		u, err := h.Invite(t.Context(), browser, service, flow.Invitation{Email: email, Data: []byte(data)})
		refused(t, err, want)
		return u
	}
	invite("a", "", "validation_failed: Unable to validate email address: invalid format")
	u := invite("Ann@example.org", `{"nick":"x"}`, "")
	if u.InvitedAt != h.now || u.ConfirmationSentAt != h.now || string(u.UserMetadata) != `{"nick": "x"}` ||
		len(u.Identities) != 1 || u.PasswordHash != "" {
		t.Errorf("%+v", u)
	}
	first := h.newest("invite", "ann@example.org")
	refused(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: "ann@example.org"})),
		"over_email_send_rate_limit: For security purposes, you can only request this after 3600 seconds.")
	h.pass(time.Second)
	again := invite("ann@example.org", `{"nick":"y"}`, "")
	if again.ID != u.ID || string(again.UserMetadata) != `{"nick": "x"}` || again.InvitedAt != h.now {
		t.Errorf("%+v", again)
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "invite", TokenHash: first.Hash})), linkExpired)
	l := h.newest("invite", "ann@example.org")
	if !strings.Contains(l.Link, "&type=invite&") {
		t.Errorf("%+v", l)
	}
	g := h.redeem("invite", l.Hash)
	if string(g.User.UserMetadata) == "" || !strings.Contains(string(g.User.UserMetadata), `"nick": "x"`) ||
		!strings.Contains(string(g.User.UserMetadata), `"email_verified": true`) {
		t.Errorf("%s", g.User.UserMetadata)
	}
	invite("ann@example.org", "", "email_exists: A user with this email address has already been registered")
	if want := "user_invited user_invited verification_failed user_signedup"; h.trail() != want {
		t.Errorf("trail %s", h.trail())
	}
	h.set(func(s *flow.Settings) { s.Email.Sent.N = 0 })
	invite("tom@example.org", "", "over_email_send_rate_limit: email rate limit exceeded")
	h.set(func(s *flow.Settings) { s.Email.Configured = false })
	invite("tom@example.org", "", "unexpected_failure: Error sending invite email")
}

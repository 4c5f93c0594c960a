package account_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

func TestExternal_newUser(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("github", "17", "-old@example.org", "*mia@example.org"))
	u := h.user(g.User.ID)
	if u.Email != "mia@example.org" || !u.EmailConfirmedAt.Equal(noon) ||
		!u.LastSignInAt.Equal(noon) || u.PasswordHash != "" || u.Role != "authenticated" || u.IsAnonymous {
		t.Error(brief(u))
	}
	if string(u.AppMetadata) != `{"provider": "github", "providers": ["github"]}` {
		t.Errorf("app_metadata %s", u.AppMetadata)
	}
	for _, m := range []map[string]any{metadata(t, u.UserMetadata), metadata(t, u.Identities[0].Data)} {
		if m["sub"] != "17" || m["name"] != "Mia github" || m["email"] != "mia@example.org" ||
			m["email_verified"] != true || m["phone_verified"] != false {
			t.Errorf("%v", m)
		}
	}
	if i := u.Identities[0]; len(u.Identities) != 1 || i.Provider != "github" ||
		i.ProviderID != "17" || i.Email != "mia@example.org" {
		t.Errorf("%+v", u.Identities)
	}
	if g.ProviderToken != "token of 17" || h.caller(g).Claims.AMR[0].Method != "oauth" ||
		h.caller(g).Claims.AAL != "aal1" {
		t.Errorf("%+v", g)
	}
	if h.trail() != "user_signedup" || len(h.messages()) != 0 {
		t.Errorf("%s, %d messages", h.trail(), len(h.messages()))
	}

	// Again: the same user, with the provider's data updated and the user's own additions kept.
	h.pass(time.Minute)
	caller := h.caller(g)
	must.Succeed(t, must.ErrOf(h.UpdateUser(t.Context(), browser, caller,
		flow.UserUpdate{Data: []byte(`{"nick":"mi"}`)})))
	p := person("github", "17", "*new@example.org")
	p.Data["name"] = "Mia New"
	again := h.enters(p)
	u = h.user(again.User.ID)
	m := metadata(t, u.UserMetadata)
	if u.ID != g.User.ID || u.Email != "mia@example.org" || m["nick"] != "mi" ||
		m["name"] != "Mia New" || len(u.Identities) != 1 {
		t.Error(brief(u))
	}
	if i := u.Identities[0]; !i.LastSignInAt.Equal(noon.Add(time.Minute)) ||
		i.Email != "new@example.org" || metadata(t, i.Data)["name"] != "Mia New" {
		t.Errorf("%+v", i)
	}
	if h.trail() != "user_signedup user_modified login" {
		t.Error(h.trail())
	}
}

func TestExternal_linksByVerifiedAddress(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.DisableSignup = false; s.Email.Notify.IdentityLinked = true })
	old := h.confirmed("mia@example.org")
	h.pass(time.Second)                                                               // identities are sorted by age
	g := h.enters(person("github", "17", "*primary@example.org", "+mia@example.org")) // a secondary one will do
	u := h.user(g.User.ID)
	if u.ID != old.User.ID || fmt.Sprint(providers(u)) != "[email github]" ||
		u.PasswordHash == "" || u.Email != "mia@example.org" {
		t.Error(brief(u))
	}
	if !strings.Contains(string(u.AppMetadata), `"providers": ["email", "github"]`) ||
		!strings.Contains(string(u.AppMetadata), `"provider": "email"`) {
		t.Errorf("%s", u.AppMetadata)
	}
	if l := h.newest("identity_linked_notification", "mia@example.org"); l.Vars.Provider != "github" ||
		l.Vars.Email != "mia@example.org" {
		t.Errorf("%+v", l)
	}
	h.caller(old) // no session was ended
	rows, _, err := h.db.AuditLog(t.Context(), store.AuditFilter{Action: "identity_linked", Limit: 1})
	if err != nil || len(rows) != 1 || metadata(t, rows[0].Traits)["provider_id"] != "17" || rows[0].Actor != u.ID {
		t.Errorf("%+v, %v", rows, err)
	}
	// By the address of that identity, which only its provider has verified, another one links too.
	h.pass(time.Second)
	u = h.user(h.enters(person("google", "g", "*primary@example.org")).User.ID)
	if u.ID != old.User.ID || fmt.Sprint(providers(u)) != "[email github google]" {
		t.Error(brief(u))
	}
	// DISABLE_SIGNUP refuses new users, and no known ones.
	h.set(func(s *flow.Settings) { s.DisableSignup = true })
	h.enters(person("google", "g", "*primary@example.org"))
	h.enters(person("gitlab", "l", "*mia@example.org"))
	_, err = h.arrive(person("google", "other", "*tom@example.org"))
	refused(t, err, "signup_disabled: Signups not allowed for this instance")
}

func TestExternal_severalAccounts(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	h.confirmed("tom@example.org")
	refused(t, must.ErrOf(h.arrive(person("github", "17", "*mia@example.org", "+tom@example.org"))),
		"unexpected_failure: Multiple accounts with the same email address in the same linking domain detected: "+
			"default")
}

func TestExternal_noAddress(t *testing.T) {
	t.Parallel()
	h := open(t)
	const none = "unexpected_failure: Error getting user email from external provider"
	refused(t, must.ErrOf(h.arrive(person("snapchat", "17"))), none)
	native := person("apple", "a")
	native.Native = true
	_, err := h.arrive(native) // before anything is made
	refused(t, err, none)
	if countUsers(h) != 0 {
		t.Error("a user was made")
	}
	p := person("snapchat", "17")
	p.Optional = true
	g := h.enters(p)
	if u := h.user(g.User.ID); u.Email != "" || !u.EmailConfirmedAt.IsZero() || countUsers(h) != 1 {
		t.Error(brief(u))
	}
	if h.enters(p).User.ID != g.User.ID {
		t.Error("another user")
	}
	// A known user may sign in with an ID token without an address.
	h.enters(person("apple", "a", "*mia@example.org"))
	h.enters(native)
	// A malformed address is not the same as none.
	native.Profile.BadEmail, p.Profile.BadEmail = true, true
	for _, p := range []arrival{native, p} {
		refused(t, must.ErrOf(h.arrive(p)), "validation_failed: "+p.Provider+" returned an address that is not valid")
	}
}

func TestExternal_banned(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("github", "17", "*mia@example.org"))
	must.Succeed(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, flow.Actor{Role: "service_role"}, g.User.ID,
		flow.Attributes{BanDuration: new("1h")})))
	for _, p := range []arrival{person("github", "17", "*mia@example.org"),
		person("google", "g", "*mia@example.org")} {
		refused(t, must.ErrOf(h.arrive(p)), "user_banned: User is banned")
	}
	if u := h.user(g.User.ID); len(u.Identities) != 1 {
		t.Error("a banned user got another identity")
	}
	h.pass(time.Hour)
	h.enters(person("google", "g", "*mia@example.org"))
}

// Apple sends the name on the first sign-in only. From other providers, a missing name means that there is none.
func TestExternal_namesStay(t *testing.T) {
	t.Parallel()
	h := open(t)
	for via, want := range map[string]any{"apple": "Mia apple", "github": nil} {
		h.enters(person(via, "a", "*"+via+"@example.org"))
		p := person(via, "a", "*"+via+"@example.org")
		delete(p.Data, "name")
		u := h.user(h.enters(p).User.ID)
		if metadata(t, u.Identities[0].Data)["name"] != want || metadata(t, u.UserMetadata)["name"] != "Mia "+via {
			t.Errorf("%s: %s, %s", via, u.Identities[0].Data, u.UserMetadata)
		}
	}
}

// What PostgreSQL refuses, and what would swell every token, is left out.
func TestExternal_hostileProfile(t *testing.T) {
	t.Parallel()
	h := open(t)
	p := person("keycloak", "17", "*mia@example.org")
	p.Data["nickname"] = "nul\x00"
	p.Data["custom_claims"] = map[string]any{"groups": strings.Repeat("x", 1<<17)}
	p.Data["picture"] = strings.Repeat("y", 5000)
	m := metadata(t, h.user(h.enters(p).User.ID).UserMetadata)
	if m["nickname"] != nil || m["custom_claims"] != nil || m["picture"] != nil || m["name"] != "Mia keycloak" {
		t.Errorf("%v", m)
	}
}

// Identities of before that are stored under a provider's other name are found.
func TestExternal_aliases(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("slack_oidc", "17", "*mia@example.org"))
	p := person("slack", "17", "*other@example.org")
	p.Aliases = []string{"slack_oidc"}
	if again := h.enters(p); again.User.ID != g.User.ID || len(h.user(g.User.ID).Identities) != 1 {
		t.Errorf("%+v", again)
	}
}

// What signing in costs: a read, and a transaction that locks the user, reads again and writes.
func TestExternal_trips(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	h := openOn(t, db)
	for i, want := range []int64{0, 5, 6} { // the first prepares statements
		p := person("github", fmt.Sprint(min(i, 1)), fmt.Sprintf("*u%d@example.org", min(i, 1)))
		if i == 0 {
			h.enters(p)
			h.enters(p)
			continue
		}
		if n := trips.During(func() { h.enters(p) }); n != want {
			t.Errorf("try %d: %d round trips, want %d", i, n, want)
		}
	}
}

// Concurrent callbacks for the same new user, and for the same address from several providers, create one user.
func TestExternal_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	users := map[uuid.UUID]int{}
	for i := range 16 {
		wg.Go(func() {
			via := []string{"github", "google", "gitlab"}[i%3]
			out, err := h.Arrive(t.Context(), browser, person(via, "17", "*mia@example.org"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			users[out.User]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(users) != 1 || countUsers(h) != 1 {
		t.Fatalf("%v, %d users", users, countUsers(h))
	}
	for id := range users {
		if u := h.user(id); len(u.Identities) != 3 {
			t.Errorf("%v", providers(u))
		}
	}
	// And concurrently with a sign-up with a password.
	for i := range 8 {
		email := fmt.Sprintf("u%d@example.org", i)
		wg.Go(func() {
			accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Email: email, Password: "sesame"})))
		})
		wg.Go(func() {
			accepted(t, must.ErrOf(h.Arrive(t.Context(), browser, person("github", email, "*"+email))))
		})
	}
	wg.Wait()
	if n := countUsers(h); n != 9 {
		t.Errorf("%d users, want 9", n)
	}
}

func TestExternal_invitation(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.DisableSignup = true })
	by := flow.Actor{Role: "service_role"}
	invite := func(email string) message {
		t.Helper()
		must.Succeed(t, must.ErrOf(h.Invite(t.Context(), browser, by,
			flow.Invitation{Email: email, Data: []byte(`{"team":"red"}`)})))
		return h.newest("invite", email)
	}
	l := invite("mia@example.org")
	accept := func(p arrival) (flow.Grant, error) {
		p.Invite = l.Hash
		return h.arrive(p)
	}
	const mismatch = "validation_failed: Invited email does not match emails from external provider"
	refused(t, must.ErrOf(accept(person("github", "17", "*other@example.org"))), mismatch)
	_, err := accept(person("github", "17", "!mia@example.org")) // asserted, not verified
	refused(t, err, mismatch)
	g, err := accept(person("github", "17", "*other@example.org", "+mia@example.org"))
	accepted(t, err)
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[github]" || u.EmailConfirmedAt.IsZero() ||
		u.Email != "mia@example.org" || !strings.Contains(string(u.AppMetadata), `"provider": "github"`) {
		t.Error(brief(u))
	}
	if !strings.HasSuffix(h.trail(), "invite_accepted") {
		t.Error(h.trail())
	}
	refused(t, must.ErrOf(accept(person("github", "17", "*mia@example.org"))), "invite_not_found: Invite not found")
	// The identity belongs to another user already.
	l = invite("tom@example.org")
	_, err = accept(person("github", "17", "*tom@example.org"))
	refused(t, err, "identity_already_exists: Identity is already linked to another user")
	h.pass(2 * time.Hour)
	refused(t, must.ErrOf(accept(person("github", "18", "*tom@example.org"))), "invite_not_found: Invite not found")
}

func TestExternal_pkce(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 8}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	h := openOn(t, db)
	p := person("github", "17", "*mia@example.org")
	p.RefreshToken = "refresh"
	p.Challenge = flow.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	out, err := h.Arrive(t.Context(), browser, p)
	if err != nil || out.Grant != nil || out.Code == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	if u := h.user(out.User); !u.LastSignInAt.IsZero() {
		t.Errorf("signed in before the code was exchanged: %+v", u)
	}
	rows := dump(t, url, "flows")
	if strings.Contains(rows, "token of 17") || strings.Contains(rows, hex.EncodeToString([]byte("token of 17"))) ||
		!strings.Contains(rows, "github") {
		t.Errorf("the provider's tokens lie open: %s", rows)
	}
	g, err := h.exchange(out.Code, verifier)
	accepted(t, err)
	if left := dump(t, url, `(select provider_tokens from flows where used_at is not null)`); left != "()" {
		t.Errorf("the used flow keeps the provider's tokens: %s", left)
	}
	if g.ProviderToken != "token of 17" || g.ProviderRefreshToken != "refresh" ||
		h.caller(g).Claims.AMR[0].Method != "oauth" {
		t.Errorf("%+v", g)
	}
	_, err = h.exchange(out.Code, verifier)
	refused(t, err, "flow_state_not_found: invalid flow state, no valid flow state found")
	// A code lives 300 s.
	out, err = h.Arrive(t.Context(), browser, p)
	accepted(t, err)
	h.pass(5*time.Minute + time.Second)
	_, err = h.exchange(out.Code, verifier)
	refused(t, err, "flow_state_expired: invalid flow state, flow state has expired")
}

// An ID token signs in once; one whose sign-in failed may come again.
func TestExternal_idTokenOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.set(func(s *flow.Settings) { s.DisableSignup = true })
	p := person("google", "g", "*mia@example.org")
	p.Native, p.Accepted = true, &provider.Accepted{Key: []byte("key"), Until: noon.Add(time.Hour)}
	refused(t, must.ErrOf(h.arrive(p)), "signup_disabled: Signups not allowed for this instance")
	h.set(func(s *flow.Settings) { s.DisableSignup = false })
	h.enters(p)
	_, err := h.arrive(p)
	if e, ok := errors.AsType[*provider.OAuthError](err); !ok || e.Code != "invalid request" ||
		e.Description != "Bad ID token" {
		t.Errorf("%v", err)
	}
}

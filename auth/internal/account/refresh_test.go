package account_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func (h *house) refresh(text string) (flow.Grant, error) {
	return h.Refresh(h.t.Context(), browser, text)
}

// children calls refresh n times at once, all with one token, and returns the grants by their refresh tokens.
func (h *house) children(n int, refresh func() (flow.Grant, error)) map[string]flow.Grant {
	h.t.Helper()
	var mu sync.Mutex
	children := map[string]flow.Grant{}
	await.Together(n, func(int) {
		g, err := refresh()
		if err != nil {
			h.t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		children[g.RefreshToken] = g
	})
	return children
}

const (
	notFound = "refresh_token_not_found: Invalid Refresh Token: Refresh Token Not Found"
	used     = "refresh_token_already_used: Invalid Refresh Token: Already Used"
	expired  = "session_expired: Invalid Refresh Token: Session Expired"
)

func TestRefresh(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	h.pass(time.Minute)
	first, err := h.Refresh(t.Context(), flow.RequestInfo{IP: "198.51.100.1", UserAgent: "other"}, g.RefreshToken)
	must.Succeed(t, err)
	c := h.caller(first)
	if first.RefreshToken == g.RefreshToken || c.Session.ID != g.Session || c.Session.RefreshedAt != h.now ||
		c.Session.UserAgent != "other" || c.Session.IP != "198.51.100.1" || len(first.User.Identities) != 1 {
		t.Errorf("%+v", c.Session)
	}
	// The parent gives the child again, for 10 s from the rotation, however often.
	for range 3 {
		h.pass(10 * time.Second / 3)
		again, err := h.refresh(g.RefreshToken)
		if err != nil || again.RefreshToken != first.RefreshToken {
			t.Errorf("%v, %v", again.RefreshToken, err)
		}
	}
	h.pass(time.Second)
	refused(t, must.ErrOf(h.refresh(g.RefreshToken)), used)
	// That ended the session, for everybody.
	refused(t, must.ErrOf(h.refresh(first.RefreshToken)), notFound)
	refused(t, must.ErrOf(h.refresh(g.RefreshToken)), notFound)
	_, err = h.Authenticate(t.Context(), first.AccessToken, "", flow.ReadUser)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
	if want := "user_confirmation_requested user_signedup token_refreshed token_revoked"; h.trail() != want {
		t.Errorf("trail %s", h.trail())
	}
}

// A grandparent is reuse even within the interval.
func TestRefresh_grandparent(t *testing.T) {
	t.Parallel()
	f := func(rotation bool, wantOld, wantLive string) {
		t.Helper()
		h := open(t, func(s *flow.Settings) { s.Sessions.Rotation = rotation })
		g := h.confirmed("mia@example.org")
		child, err := h.refresh(g.RefreshToken)
		accepted(t, err)
		live, err := h.refresh(child.RefreshToken)
		accepted(t, err)
		refused(t, must.ErrOf(h.refresh(g.RefreshToken)), wantOld)
		refused(t, must.ErrOf(h.refresh(live.RefreshToken)), wantLive)
	}
	f(true, used, notFound)
	f(false, used, "")
	// Without rotation's punishment the parent gives the child at any age.
	h := open(t, func(s *flow.Settings) { s.Sessions.Rotation = false })
	g := h.confirmed("mia@example.org")
	child, err := h.refresh(g.RefreshToken)
	accepted(t, err)
	h.pass(100 * time.Hour)
	again, err := h.refresh(g.RefreshToken)
	accepted(t, err)
	if again.RefreshToken != child.RefreshToken {
		t.Error("another child")
	}
}

func TestRefresh_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	f := func(text, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.refresh(text)), want)
	}
	const malformed = "validation_failed: Refresh token is not valid"
	for _, text := range []string{"", "x", g.RefreshToken + "A", g.RefreshToken[1:],
		strings.Replace(g.RefreshToken, g.RefreshToken[5:6], "!", 1), "ABCdefghijkl"} {
		f(text, malformed)
	}
	f("abcdefghijkl",
		"refresh_token_not_found: Invalid Refresh Token: Refresh Token Not Found") // of the replaced service
	codec := token.NewRefreshCodec(h.root.Keys(secret.Refresh))
	forged := token.NewRefreshCodec([][]byte{[]byte("another key of thirty-two bytes!")})
	good, err := codec.Parse(g.RefreshToken)
	must.Succeed(t, err)
	write := func(c *token.RefreshCodec, change func(*token.Refresh)) string {
		r := good
		change(&r)
		return string(c.Append(nil, &r))
	}
	f(write(forged, func(*token.Refresh) {}), notFound)
	f(write(codec, func(r *token.Refresh) { r.Session = uuid.New() }), notFound)
	f(write(codec, func(r *token.Refresh) { r.Secret[0]++ }), notFound)
	f(write(codec, func(r *token.Refresh) { r.Counter = 7 }), notFound)
	h.ban(g.User, "1h")
	f(g.RefreshToken, "user_banned: Invalid Refresh Token: User Banned")
	h.ban(g.User, "none")
	f(g.RefreshToken, "")

	g = h.again("mia@example.org")
	accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "", false))
	f(g.RefreshToken, notFound)

	g = h.again("mia@example.org")
	h.pass(61 * time.Minute)
	h.set(func(s *flow.Settings) { s.Sessions.Inactivity = time.Hour })
	f(g.RefreshToken, expired+" (Inactivity)")
	h.set(func(s *flow.Settings) { s.Sessions.Timebox = time.Hour })
	f(g.RefreshToken, expired)
	h.set(func(s *flow.Settings) { s.Sessions.Timebox, s.Sessions.Inactivity = 0, 0 })
	f(g.RefreshToken, "")

	h.set(func(s *flow.Settings) { s.Sessions.SinglePerUser = true })
	older := h.again("mia@example.org")
	h.pass(time.Second)
	newer := h.again("mia@example.org")
	f(older.RefreshToken, expired+" (Revoked by Newer Login)")
	f(newer.RefreshToken, "")

	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, g.User.ID, true))
	f(newer.RefreshToken, notFound)
}

// again signs in once more.
func (h *house) again(email string) flow.Grant {
	h.t.Helper()
	g, err := h.SignInPassword(h.t.Context(), browser, account.Password{Email: email, Password: "sesame"})
	must.Succeed(h.t, err)
	return g
}

// Twenty at once with one token: one rotation, and all have the same child.
func TestRefresh_parallel(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	for range 3 {
		children := h.children(20, func() (flow.Grant, error) { return h.refresh(g.RefreshToken) })
		if len(children) != 1 {
			t.Fatalf("children %v", children)
		}
		for _, child := range children {
			g = child
		}
	}
	if c := h.caller(g); c.Session.Counter != 3 {
		t.Errorf("rotated %d times, want 3", c.Session.Counter)
	}
}

// A session that rotates without pause is refused as unavailable; handing out the child again is free.
func TestRefresh_burst(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Sessions.RefreshBurst = 3 })
	g := h.confirmed("mia@example.org")
	for range 3 {
		parent := g.RefreshToken
		var err error
		g, err = h.refresh(parent)
		accepted(t, err)
		if _, err := h.refresh(parent); err != nil && kindOf(err) != refusal.KindUnavailable {
			t.Error(err)
		}
	}
	_, err := h.refresh(g.RefreshToken)
	if kindOf(err) != refusal.KindUnavailable {
		t.Errorf("the fourth: %v", err)
	}
	h.pass(time.Second)
	accepted(t, must.ErrOf(h.refresh(g.RefreshToken)))
}

// Whatever happens to the database, the client keeps its session.
func TestRefresh_trouble(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	h := openOn(t, db)
	g := h.confirmed("mia@example.org")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Refresh(ctx, browser, g.RefreshToken); kindOf(err) != refusal.KindUnavailable {
		t.Errorf("cancelled: %v", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := h.Refresh(late, browser, g.RefreshToken); kindOf(err) != refusal.KindUnavailable {
		t.Errorf("too late: %v", err)
	}
	accepted(t, must.ErrOf(h.refresh(g.RefreshToken)))
}

func TestRefresh_Statements(t *testing.T) {
	db, trips := storetest.Counting(t)
	h := openOn(t, db)
	g := h.confirmed("mia@example.org")
	next := func() {
		var err error
		if g, err = h.refresh(g.RefreshToken); err != nil {
			t.Fatal(err)
		}
	}
	next()
	if n := trips.During(next); n != 1 {
		t.Errorf("refresh takes %d round trips, want 1", n)
	}
	read := func() { h.caller(g) }
	read()
	if n := trips.During(read); n != 1 {
		t.Errorf("a caller takes %d round trips, want 1", n)
	}
	out := func() {
		must.Succeed(t, h.SignOut(t.Context(), browser, g.AccessToken, "", false))
	}
	out()
	if n := trips.During(out); n != 1 {
		t.Errorf("sign-out takes %d round trips, want 1", n)
	}
}

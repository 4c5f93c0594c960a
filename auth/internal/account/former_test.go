package account_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// exec runs a statement on the flows' database.
func (h *house) exec(sql string, args ...any) {
	h.t.Helper()
	storetest.Exec(h.t, h.db, sql, args...)
}

// moveIn takes over the sessions of a source, and closes that.
func (h *house) moveIn(linksUntil time.Time) *formertest.Source {
	h.t.Helper()
	s := formertest.Fill(h.t, testdb.Postgres(h.t), "auth", formertest.Newest, h.now)
	formertest.Carry(h.t, h.exec, h.root, s, linksUntil)
	h.lookAtTakeover()
	return s
}

func (h *house) lookAtTakeover() {
	h.t.Helper()
	m, err := h.db.Takeover(h.t.Context())
	if err != nil || m.ClosedAt.IsZero() {
		h.t.Fatalf("%+v, %v", m, err)
	}
	h.TookOver(m.LinksUntil)
}

// refreshAny refreshes with a token of any form, as the API does.
func (h *house) refreshAny(text string) (flow.Grant, error) {
	if h.IsFormer(text) {
		own, err := h.OwnToken(h.t.Context(), text)
		if err != nil {
			return flow.Grant{}, err
		}
		text = own
	}
	return h.refresh(text)
}

// claimsOf are those of an access token.
func claimsOf(t *testing.T, access string) (c struct {
	AAL       string           `json:"aal"`
	AMR       []formertest.AMR `json:"amr"`
	SessionID uuid.UUID        `json:"session_id"`
	Subject   uuid.UUID        `json:"sub"`
	Anonymous bool             `json:"is_anonymous"`
}) {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(access, ".")[1])
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	must.Succeed(t, err)
	return c
}

// Every session that was carried over refreshes on, as what it was, and its former token is the parent of the first
// one here.
func TestFormer_refresh(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	versions := map[int]int{}
	for _, u := range s.Users {
		for _, v := range u.Sessions {
			if v.Left {
				continue
			}
			versions[v.Version]++
			for _, dead := range v.Dead {
				refused(t, must.ErrOf(h.refreshAny(dead)), notFound)
			}
			first, err := h.refreshAny(v.Token)
			if err != nil {
				t.Fatalf("kind %d: %v", u.Kind, err)
			}
			c := claimsOf(t, first.AccessToken)
			if want := map[int]string{1: "aal1", 2: "aal2"}[v.AAL]; c.AAL != want || c.SessionID != v.ID ||
				c.Subject != u.ID ||
				!slices.Equal(c.AMR, v.AMR) {
				t.Errorf("kind %d: %+v, want %s of %s, %v", u.Kind, c, want, v.ID, v.AMR)
			}
			h.pass(9 * time.Second)
			again, err := h.refreshAny(v.Token)
			if err != nil || again.RefreshToken != first.RefreshToken {
				t.Errorf("kind %d: the child is %s, then %s, %v", u.Kind, first.RefreshToken, again.RefreshToken, err)
			}
			next, err := h.refreshAny(first.RefreshToken)
			if err != nil || next.RefreshToken == first.RefreshToken {
				t.Errorf("kind %d: the grandchild is %s, %v", u.Kind, next.RefreshToken, err)
			}
			for _, dead := range v.Dead { // which end nothing
				refused(t, must.ErrOf(h.refreshAny(dead)), notFound)
			}
			h.pass(11 * time.Second)
			if _, err := h.refreshAny(next.RefreshToken); err != nil {
				t.Errorf("kind %d: %v", u.Kind, err)
			}
			refused(t, must.ErrOf(h.refreshAny(v.Token)), used)
			refused(t, must.ErrOf(h.refreshAny(v.Token)), notFound)
		}
	}
	if versions[1] < 15 || versions[2] < 4 {
		t.Errorf("sessions by version: %v", versions)
	}
}

// A former token that was never used here is reuse ten seconds after another client has used it.
func TestFormer_reuse(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	for _, kind := range []int{1, 2, 38, 39} {
		for _, v := range s.User(kind).Sessions {
			first, err := h.refreshAny(v.Token)
			accepted(t, err)
			h.pass(11 * time.Second)
			refused(t, must.ErrOf(h.refreshAny(v.Token)), used)
			refused(t, must.ErrOf(h.refreshAny(first.RefreshToken)), notFound)
		}
	}
}

func TestFormer_parallel(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	for _, kind := range []int{1, 39} {
		v := s.User(kind).Sessions[0]
		children := h.children(20, func() (flow.Grant, error) { return h.refreshAny(v.Token) })
		_, c, err := h.db.Caller(t.Context(), s.User(kind).ID, v.ID)
		if len(children) != 1 || c.Counter != 1 || err != nil {
			t.Errorf("kind %d: %d children, %d rotations, %v", kind, len(children), c.Counter, err)
		}
	}
}

// Former tokens that were not used yet stay valid under a previous root key, and not without it.
func TestFormer_rootKey(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	withRoot := func(root *secret.Root) *house {
		other := &house{t: t, db: h.db, root: root, keys: h.keys, now: h.now, s: h.s}
		other.use(flow.New(flow.Options{DB: h.db, Keys: h.keys,
			Refresh: token.NewRefreshCodec(root.Keys(secret.Refresh)), Root: root, Passwords: workers(),
			Now: h.clock}, h.s))
		other.lookAtTakeover()
		return other
	}
	lost, kept := withRoot(secret.NewRoot("newer")), withRoot(secret.NewRoot("newer", "root key"))
	for _, kind := range []int{1, 2, 38, 39} {
		for _, v := range s.User(kind).Sessions {
			_, err := lost.refreshAny(v.Token)
			refused(t, err, notFound)
			g, err := kept.refreshAny(v.Token)
			accepted(t, err)
			again, err := kept.refreshAny(v.Token)
			accepted(t, err)
			if again.RefreshToken != g.RefreshToken {
				t.Errorf("kind %d: another child", kind)
			}
			accepted(t, must.ErrOf(kept.refreshAny(g.RefreshToken)))
		}
	}
}

// What a refresh refuses, it refuses with a former token too.
func TestFormer_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	f := func(kind int, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.refreshAny(s.User(kind).Sessions[0].Token)), want)
	}
	h.ban(h.user(s.User(1).ID), "1h")
	f(1, "user_banned: Invalid Refresh Token: User Banned")
	h.exec("update sessions set not_after = $1 where user_id = $2", h.now.Add(-time.Second), s.User(3).ID)
	f(3, expired)
	h.exec("delete from sessions where user_id = $1", s.User(8).ID)
	f(8, notFound)
	h.exec("delete from sessions where user_id = $1", s.User(39).ID)
	f(39, notFound)
	h.exec("update sessions set ended_at = $1, ended_reason = 'logout' where user_id = $2", h.now, s.User(38).ID)
	f(38, notFound)
	h.set(func(s *flow.Settings) { s.Sessions.Timebox = time.Hour })
	f(40, expired)
	h.set(func(s *flow.Settings) { s.Sessions.Timebox, s.Sessions.Inactivity = 0, time.Minute })
	f(40, expired+" (Inactivity)")
	h.set(func(s *flow.Settings) { s.Sessions.Inactivity = 0 })
	f(40, "")

	// A session that was opened here has no former token, whatever a text says.
	g := h.confirmed("mia@example.org")
	key := []byte("0123456789abcdef0123456789abcdef")
	refused(t, must.ErrOf(h.refreshAny(formertest.Version2(g.Session, 0, key))), notFound)
	refused(t, must.ErrOf(h.refreshAny("abcdefghijkl")), notFound)
	refused(t, must.ErrOf(h.refreshAny("ABCDEFGHIJKLMNOPQRST-_")), notFound)
	for _, text := range []string{"ABCdefghijkl", "abcdefghijklm", "x", ""} {
		refused(t, must.ErrOf(h.refreshAny(text)), "validation_failed: Refresh token is not valid")
	}
}

// Without a takeover nothing is looked up.
func TestFormer_noTakeover(t *testing.T) {
	t.Parallel()
	h := open(t)
	v2 := formertest.Version2(uuid.New(), 5, []byte("0123456789abcdef0123456789abcdef"))
	for _, text := range []string{"abcdefghijkl", "ABCDEFGHIJKLMNOPQRST-_", v2} {
		if h.IsFormer(text) {
			t.Errorf("%s is former", text)
		}
		refused(t, must.ErrOf(h.OwnToken(t.Context(), text)), notFound)
	}
	refused(t, must.ErrOf(h.refresh("abcdefghijkl")), notFound)
	refused(t, must.ErrOf(h.refresh(v2)), notFound)
	refused(t, must.ErrOf(h.refresh("ABCDEFGHIJKLMNOPQRST-_")), "validation_failed: Refresh token is not valid")
}

// A former token costs one round trip more than any other, in both versions.
func TestFormer_Statements(t *testing.T) {
	db, trips := storetest.Counting(t)
	h := openOn(t, db)
	s := h.moveIn(time.Time{})
	f := func(want int64, text string) (g flow.Grant) {
		t.Helper()
		n := trips.During(func() {
			var err error
			if g, err = h.refreshAny(text); err != nil {
				t.Fatal(err)
			}
		})
		if n != want {
			t.Errorf("%d round trips, want %d", n, want)
		}
		return g
	}
	for _, kind := range []int{1, 38} { // the first time prepares
		must.Succeed(t, must.ErrOf(h.refreshAny(s.User(kind).Sessions[0].Token)))
	}
	f(1, f(2, s.User(3).Sessions[0].Token).RefreshToken)
	f(1, f(2, s.User(39).Sessions[0].Token).RefreshToken)
}

// A link that was carried over is found under the names that the other service finds it by, and the answer names the
// type that was requested.
func TestFormer_links(t *testing.T) {
	t.Parallel()
	h := open(t)
	until := h.now.Add(time.Hour)
	h.moveIn(until)
	const email = "linked@example.org"
	id := uuid.New()
	link := func(kind store.Kind, confirmed bool) string {
		h.exec("delete from users where id = $1", id)
		user := formertest.CarriedUser{ID: id, At: h.now, Email: email}
		if confirmed {
			user.Confirmed = &h.now
		}
		user.Carry(h.exec)
		text := formertest.LinkToken(email, "123456")
		formertest.CarriedLink{User: id, Kind: string(kind), Address: email, Text: text, Expires: until}.Carry(h.exec)
		return text
	}
	const expired = "otp_expired: Email link is invalid or has expired"
	for _, kind := range []store.Kind{store.KindSignup, store.KindInvite, store.KindRecovery} {
		for _, typ := range []string{"signup", "invite", "recovery", "magiclink", "email", "email_change"} {
			found := map[store.Kind][]string{
				store.KindSignup: {"signup", "invite", "email"}, store.KindInvite: {"signup", "invite", "email"},
				store.KindRecovery: {"recovery", "magiclink", "email"},
			}[kind]
			text := link(kind, kind == store.KindRecovery)
			v, err := h.verify(flow.Verify{Type: typ, TokenHash: text})
			if !slices.Contains(found, typ) {
				refused(t, err, expired)
				continue
			}
			want := typ
			if typ == "email" {
				want = map[store.Kind]string{store.KindSignup: "signup", store.KindInvite: "signup",
					store.KindRecovery: "magiclink"}[kind]
			}
			if err != nil || v.Type != want || v.Grant == nil || v.Grant.User.ID != id {
				t.Errorf("%s as %s: %+v, %v", kind, typ, v, err)
			}
			refused(t, must.ErrOf(h.verify(flow.Verify{Type: typ, TokenHash: text})), expired)
		}
	}
	// Our own links keep to their names.
	h.confirmed("mia@example.org")
	must.Succeed(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	own := h.newest("recovery", "mia@example.org").Hash
	for _, typ := range []string{"magiclink", "email", "signup"} {
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: typ, TokenHash: own})), expired)
	}
	h.redeem("recovery", own)

	// With a prefix that was not in the mail, or without one that was, and after the last link's time.
	text := link(store.KindSignup, false)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: "pkce_" + text})), expired)
	h.pass(time.Hour)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: text})), expired)
}

// A link of a PKCE flow that was carried over gives a code, which the flow's verifier opens.
func TestFormer_pkce(t *testing.T) {
	t.Parallel()
	h := open(t)
	until := h.now.Add(time.Hour)
	s := h.moveIn(until)
	u := s.User(23)
	h.exec(`insert into users (id, aud, created_at, updated_at, role, email) values ($1, 'authenticated', $2, $2, 'authenticated', $3)`,
		u.ID, h.now, u.Email)
	pkce := uuid.New()
	h.exec(`insert into flows (id, user_id, method, challenge, challenge_method, created_at, expires_at)
		values ($1, $2, 'email/signup', $3, 's256', $4, $5)`, pkce, u.ID, formertest.Challenge(u.Links[0].Verifier), h.now, until.Add(5*time.Minute))
	text, _ := strings.CutPrefix(u.Links[0].Token, "pkce_")
	formertest.CarriedLink{User: u.ID, Kind: "signup", Address: u.Email, Text: text, Expires: until}.Carry(h.exec)
	h.exec("update one_time_tokens set flow_id = $1, password_hash = 'x', user_metadata = '{\"nick\": \"pk\"}' where "+
		"user_id = $2", pkce, u.ID)

	_, err := h.verify(flow.Verify{Type: "signup", TokenHash: text, Link: true})
	refused(t, err, "otp_expired: Email link is invalid or has expired")
	v, err := h.verify(flow.Verify{Type: "signup", TokenHash: u.Links[0].Token, Link: true})
	if err != nil || v.Code == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	g, err := h.ExchangeCode(t.Context(), browser, oauth.CodeExchange{Code: v.Code, Verifier: u.Links[0].Verifier})
	if err != nil || g.User.ID != u.ID || !strings.Contains(string(g.User.UserMetadata), "pk") {
		t.Errorf("%s, %v", g.User.UserMetadata, err)
	}
}

// Six hundred links may be guessed in an hour, by all clients together; a right one is not counted.
func TestFormer_guesses(t *testing.T) {
	t.Parallel()
	h := open(t)
	until := h.now.Add(3 * time.Hour)
	s := h.moveIn(until)
	u := s.User(1)
	right := func() string {
		text := formertest.LinkToken(u.Email, uuid.NewString())
		formertest.CarriedLink{User: u.ID, Kind: "recovery", Address: u.Email, Text: text, Expires: until}.Carry(h.exec)
		return text
	}
	wrong := func() string { return formertest.LinkToken(u.Email, uuid.NewString()) }
	const limited = "over_request_rate_limit: Request rate limit reached"
	left := func() float64 {
		var levels []store.Level
		l := store.Limit{Key: h.root.MAC(secret.Limits, "former links")[:16], Size: 600, Refill: time.Hour}
		b := h.db.Batch()
		b.Levels(&levels, l)
		must.Succeed(t, b.Send(t.Context()))
		return l.Left(levels[0], h.now)
	}
	for range 3 {
		h.redeem("recovery", right())
	}
	if n := left(); n != 600 {
		t.Errorf("%v tries are left after right links", n)
	}
	_, err := h.verify(flow.Verify{Type: "recovery", TokenHash: wrong()})
	refused(t, err, "otp_expired: Email link is invalid or has expired")
	_, err = h.StartOAuth(t.Context(), browser, oauth.OAuthStart{Provider: "github", InviteToken: wrong()})
	if n := left(); n > 599 {
		t.Errorf("%v tries are left after a wrong link, %v", n, err)
	}
	h.exec("update limits set tokens = 0.5, at = $1 where key = $2", h.now,
		h.root.MAC(secret.Limits, "former links")[:16])
	for _, p := range []flow.Verify{
		{Type: "recovery", TokenHash: right()}, {Type: "recovery", TokenHash: wrong()},
		{Type: "recovery", TokenHash: wrong(), Password: "sesame 2"}, {Type: "signup", TokenHash: "pkce_" + wrong()},
	} {
		refused(t, must.ErrOf(h.verify(p)), limited)
	}
	// Links of ours are not held up, and nothing is counted of them or of other texts.
	h.confirmed("mia@example.org")
	_, err = h.verify(flow.Verify{Type: "recovery", TokenHash: strings.Repeat("0", 64)})
	refused(t, err, "otp_expired: Email link is invalid or has expired")
	h.pass(6 * time.Second)
	h.redeem("recovery", right())
	// When the last link has expired, nothing is looked up or counted.
	h.exec("update limits set tokens = 0, at = $1", until)
	h.pass(until.Sub(h.now))
	_, err = h.verify(flow.Verify{Type: "recovery", TokenHash: wrong()})
	refused(t, err, "otp_expired: Email link is invalid or has expired")
}

// A sign-up that waited there waits here: the password is right and refused until the address is confirmed, and the
// code of a new mail confirms with that password and the data of then.
func TestFormer_pending(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	u := s.User(5)
	hash := formertest.Hash(u.Password)
	h.exec(`insert into users (id, aud, created_at, updated_at, role, email, confirmation_sent_at, app_metadata)
		values ($1, 'authenticated', $2, $2, 'authenticated', $3, $2, '{"provider": "email", "providers": ["email"]}')`, u.ID, h.now.Add(-time.Hour), u.Email)
	h.exec(`insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
		values ($1, $2, 'email', $5, $3, '{}', $4, $4)`, uuid.New(), u.ID, u.Email, h.now, u.ID.String())
	h.exec(`insert into one_time_tokens (id, user_id, kind, address, password_hash, user_metadata, created_at, expires_at)
		values ($1, $2, 'signup', $3, $4, '{"nick": "pen"}', $5, $6)`, uuid.New(), u.ID, u.Email, hash, h.now.Add(-time.Hour), h.now.Add(30*24*time.Hour))
	refused(t, h.signIn(u.Email, u.Password), "email_not_confirmed: Email not confirmed")
	must.Succeed(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: u.Email})))
	code := h.newest(string(mail.Confirmation), u.Email).Code
	v, err := h.verify(flow.Verify{Type: "signup", Email: u.Email, Token: code})
	if err != nil || !strings.Contains(string(v.Grant.User.UserMetadata), "pen") {
		t.Fatalf("%+v, %v", v, err)
	}
	accepted(t, h.signIn(u.Email, u.Password))
}

// An access token that the other service signed with the shared secret is good until it expires, since its session is
// here.
func TestFormer_accessToken(t *testing.T) {
	t.Parallel()
	h := open(t)
	s := h.moveIn(time.Time{})
	sign := func(kind int, expires time.Time) string {
		u := s.User(kind)
		v := u.Sessions[0]
		claims, err := json.Marshal(map[string]any{
			"iss": "https://there.example.org/auth/v1", "sub": u.ID, "aud": "authenticated", "exp": expires.Unix(),
			"iat": h.now.Add(-time.Minute).Unix(), "email": u.Email, "phone": "", "role": "authenticated",
			"aal":          "aal1",
			"app_metadata": map[string]any{"provider": "email"}, "user_metadata": map[string]any{}, "amr": v.AMR,
			"session_id": v.ID, "is_anonymous": false,
		})
		must.Succeed(t, err)
		encode := base64.RawURLEncoding.EncodeToString
		text := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims)
		mac := hmac.New(sha256.New, []byte("a shared secret of at least 32 bytes"))
		mac.Write([]byte(text))
		return text + "." + encode(mac.Sum(nil))
	}
	for _, kind := range []int{1, 39} {
		p, err := h.Authenticate(t.Context(), sign(kind, h.now.Add(time.Minute)), "", flow.Full)
		if err != nil || p.User.ID != s.User(kind).ID || p.Session.ID != s.User(kind).Sessions[0].ID {
			t.Errorf("kind %d: %+v, %v", kind, p.Session, err)
		}
	}
	if _, err := h.Authenticate(t.Context(), sign(1, h.now.Add(-time.Second)), "", flow.Full); err == nil {
		t.Error("an expired one is good")
	}
	h.exec("delete from sessions where user_id = $1", s.User(39).ID)
	_, err := h.Authenticate(t.Context(), sign(39, h.now.Add(time.Minute)), "", flow.Full)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
}

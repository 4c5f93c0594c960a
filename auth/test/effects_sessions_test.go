package test

import (
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/token"
	"gatehouse/shared/testdb"
)

func TestEffects_refresh(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	signUp := func() string {
		t.Helper()
		return d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("refresh_token")
	}
	refresh := func(old string) string {
		t.Helper()
		return d.want(t, 200, "POST", refreshPath, "", refreshing(old)).str("refresh_token")
	}

	// A token two refreshes old is refused; whether the session goes on is the setting's.
	twoOld := func() (newest string) {
		t.Helper()
		first := signUp()
		newest = refresh(refresh(first))
		d.refuses(t, "refresh_token_already_used", "POST", refreshPath, "", refreshing(first))
		return newest
	}
	d.with(t, auto)
	d.refuses(t, "refresh_token_not_found", "POST", refreshPath, "", refreshing(twoOld()))
	d.with(t, auto, "AUTH_SECURITY_REFRESH_TOKEN_ROTATION_ENABLED=false")
	refresh(twoOld())

	// The token before gives the same new one, for as long as the setting says.
	d.with(t, auto, "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=1h")
	first := signUp()
	if a, b := refresh(first), refresh(first); a != b {
		t.Error("a token that was used twice gave two")
	}
	d.with(t, auto, "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=0")
	first = signUp()
	refresh(first)
	d.refuses(t, "refresh_token_already_used", "POST", refreshPath, "", refreshing(first))

	// One more comes each second, so a slow machine needs several before one is refused.
	const most = 59
	refused := func(setting string) bool {
		t.Helper()
		d.with(t, auto, setting)
		newest := signUp()
		for range most {
			a, err := call("POST", d.http+refreshPath, "", refreshing(newest))
			if err == nil && a.status == 503 {
				return true
			}
			if err != nil || a.status != 200 {
				t.Fatal(a.text, err)
			}
			newest = a.str("refresh_token")
		}
		return false
	}
	if !refused("AUTH_RATE_LIMIT_REFRESH_PER_SESSION=1") {
		t.Error("AUTH_RATE_LIMIT_REFRESH_PER_SESSION=1 refuses nothing")
	}
	if refused("AUTH_RATE_LIMIT_REFRESH_PER_SESSION=60") {
		t.Error("AUTH_RATE_LIMIT_REFRESH_PER_SESSION=60 refuses fewer")
	}
}

func TestEffects_sessionRules(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	for setting, want := range map[string]string{"": "", "AUTH_SESSIONS_TAGS=web,app": "web"} {
		d.with(t, auto, setting)
		_, claims := tokenParts(t, d.want(t, 200, "POST", "/signup", "",
			credentials(d.unusedAddress(), horse)).str("access_token"))
		if tags := rows[string](t, d.database, `select tag from sessions where id = $1::text::uuid`,
			claims["session_id"]); !slices.Equal(tags, []string{want}) {
			t.Errorf("%q: tags %q", setting, tags)
		}
	}

	// A user with a second factor signs in with the first alone.
	d.with(t, auto)
	email := d.unusedAddress()
	d.app(t, d.want(t, 200, "POST", "/signup", "", credentials(email, horse)).str("access_token"))
	signIn := func() answer {
		t.Helper()
		return d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse))
	}
	low := signIn()
	if n := low.body["expires_in"]; n != 3600. {
		t.Errorf("without AUTH_SESSIONS_ALLOW_LOW_AAL: %v s", n)
	}
	low = d.want(t, 200, "POST", refreshPath, "", refreshing(low.str("refresh_token")))
	d.with(t, auto, "AUTH_SESSIONS_ALLOW_LOW_AAL=77")
	if n := signIn().body["expires_in"]; n != 77. {
		t.Errorf("AUTH_SESSIONS_ALLOW_LOW_AAL=77: %v s", n)
	}
	d.with(t, auto, "AUTH_SESSIONS_ALLOW_LOW_AAL=1ms")
	d.refuses(t, "session_expired", "POST", refreshPath, "", refreshing(low.str("refresh_token")))

	// A new password needs a nonce, but in a session that is young enough.
	const change, nonces = `{"password":"another horse"}`, "AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION=true"
	d.with(t, auto, nonces)
	access := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	d.refuses(t, "reauthentication_needed", "PUT", "/user", access, change)
	d.with(t, auto, nonces, "AUTH_SECURITY_REAUTHENTICATION_MAX_AGE=1ms")
	d.refuses(t, "reauthentication_needed", "PUT", "/user", access, change)
	d.with(t, auto, nonces, "AUTH_SECURITY_REAUTHENTICATION_MAX_AGE=1h")
	d.want(t, 200, "PUT", "/user", access, change)
}

// What passwords are kept as, and which key signs.
func TestEffects_secrets(t *testing.T) {
	t.Parallel()
	database := testdb.Postgres(t)
	d := &tuned{database: database,
		instance: launch(t, t.TempDir(), environment(database, "AUTH_JWT_ALGORITHM=", "AUTH_PASSWORD_HASH="))}
	d.awaitReady(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	email := d.unusedAddress()
	for i, hash := range []struct{ setting, begins string }{
		{"AUTH_PASSWORD_HASH=bcrypt:4", "$2a$04$"}, {"AUTH_PASSWORD_HASH=bcrypt:5", "$2a$05$"},
		{"AUTH_PASSWORD_HASH=argon2id:1024,1,1", "$argon2id$v=19$m=1024,t=1,p=1$"},
	} {
		d.with(t, auto, hash.setting)
		d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse))
		if i == 0 {
			d.want(t, 200, "POST", "/signup", "", credentials(email, horse))
		}
		d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse)) // hashed again by that
		kept := rows[string](t, database,
			`select password_hash from users where email = $1 or created_at = (select max(created_at) from users)`,
			email)
		for _, h := range kept {
			if !strings.HasPrefix(h, hash.begins) {
				t.Errorf("%s: %.30s", hash.setting, h)
			}
		}
	}

	key, err := token.Generate(token.ES256)
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := key.PrivateJWK()
	if err != nil {
		t.Fatal(err)
	}
	signs := func(setting string) (kid string, published bool) {
		t.Helper()
		d.with(t, auto, "AUTH_PASSWORD_HASH=bcrypt:4", setting)
		header, _ := tokenParts(t, d.want(t, 200, "POST", "/signup", "",
			credentials(d.unusedAddress(), horse)).str("access_token"))
		kid, _ = header["kid"].(string)
		return kid, strings.Contains(d.want(t, 200, "GET", "/.well-known/jwks.json", "", "").text, key.ID())
	}
	if kid, published := signs(""); kid == key.ID() || kid == "" || published {
		t.Errorf("without AUTH_JWT_KEYS: %q, published %v", kid, published)
	}
	if kid, published := signs("AUTH_JWT_KEYS='[" + string(jwk) + "]'"); kid != key.ID() || !published {
		t.Errorf("AUTH_JWT_KEYS with %s: %q, published %v", key.ID(), kid, published)
	}
}

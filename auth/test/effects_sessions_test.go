package test

import (
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

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
	must.Succeed(t, err)
	jwk, err := key.PrivateJWK()
	must.Succeed(t, err)
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

package test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// What the daemon logs at the end of a reload.
const (
	reloadTaken   = "SIGHUP: read the settings again"
	reloadRefused = "SIGHUP: keeping the settings in force"
)

// writeSettings makes the settings file of a daemon that runs, or will run, in dir.
func writeSettings(t testing.TB, dir string, lines ...string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, ".env"), []byte(strings.Join(lines, "\n")), 0o600))
}

// reload has the daemon read a settings file of these lines, and returns the line that it logs at the end.
func (d *instance) reload(t testing.TB, lines []string) string {
	t.Helper()
	writeSettings(t, d.dir, lines...)
	before := len(d.log.text())
	must.Succeed(t, d.Signal(syscall.SIGHUP))
	var end string
	await.True(t, "the settings are read", func() bool {
		for line := range strings.Lines(d.log.text()[before:]) {
			if strings.HasSuffix(line, "\n") &&
				(strings.Contains(line, reloadTaken) || strings.Contains(line, reloadRefused)) {
				end = line
			}
		}
		return end != ""
	})
	return end
}

// with puts these settings in force, and no others of those that the environment hasn't.
func (d *instance) with(t testing.TB, lines ...string) {
	t.Helper()
	if end := d.reload(t, lines); !strings.Contains(end, reloadTaken) {
		t.Fatal(end)
	}
}

// mistaken wants these settings to be refused, in words that hold all of parts.
func (d *instance) mistaken(t testing.TB, lines []string, parts ...string) {
	t.Helper()
	refusal := d.reload(t, lines)
	if !strings.Contains(refusal, reloadRefused) {
		t.Errorf("these settings were taken: %q", lines)
	}
	for _, part := range parts {
		if !strings.Contains(refusal, part) {
			t.Errorf("%s is not in %s", part, refusal)
		}
	}
}

// SIGHUP reads .env again: settings that can change do, the others are named, an error changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	d := start(t, environment(testdb.Postgres(t), "AUTH_MAILER_AUTOCONFIRM=true"))
	if a := d.want(t, 200, "GET", "/settings", "", ""); a.body["disable_signup"] != false {
		t.Error(a.text)
	}
	d.mistaken(t, []string{"AUTH_DISABLE_SIGNUP=perhaps", "AUTH_JWT_AUD=other"}, "AUTH_DISABLE_SIGNUP=")
	if a := d.want(t, 200, "GET", "/settings", "", ""); a.body["disable_signup"] != false {
		t.Error(a.text)
	}
	const half = "/authorize?provider=github&code_challenge=x"
	if a := d.want(t, 400, "GET", half, "", ""); a.str("msg") != "Unsupported provider: provider is not enabled" {
		t.Error(a.text)
	}
	d.with(t, "AUTH_EXTERNAL_GITHUB_ENABLED=true", "AUTH_EXTERNAL_GITHUB_CLIENT_ID=x", "AUTH_EXTERNAL_GITHUB_SECRET=y",
		"AUTH_EXTERNAL_GITHUB_REDIRECT_URI=http://localhost:9999/callback",
		"AUTH_DISABLE_SIGNUP=true", "AUTH_DB_MAX_POOL_SIZE=3", "LOG_LEVEL=debug", "AUTH_JWT_EXP=77")
	d.log.await(t, `"name":"AUTH_DB_MAX_POOL_SIZE"`, nil)
	if a := d.want(t, 200, "GET", "/settings", "", ""); a.body["disable_signup"] != true {
		t.Error(a.text)
	}
	if a := d.want(t, 400, "GET", half, "",
		""); a.str("msg") != "PKCE flow requires code_challenge_method and code_challenge" {
		t.Error(a.text)
	}
	if a := d.want(t, 422, "POST", "/signup", "",
		`{"email":"ann@example.org","password":"correct horse"}`); a.str("error_code") != "signup_disabled" {
		t.Error(a.text)
	}
}

// Keys given, keys of the database's and JWT_SECRET take each other's place without a restart.
func TestReload_keys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeSettings(t, dir, "AUTH_JWT_ALGORITHM=HS256")
	d := launch(t, dir, environment(testdb.Postgres(t), "AUTH_JWT_ALGORITHM=", "AUTH_MAILER_AUTOCONFIRM=true"))
	d.awaitReady(t)
	kids := func() string {
		t.Helper()
		var set struct {
			Keys []struct{ Kid, Alg string }
		}
		a := d.want(t, 200, "GET", "/.well-known/jwks.json", "", "")
		must.Succeed(t, json.Unmarshal([]byte(a.text), &set))
		var all []string
		for _, k := range set.Keys {
			all = append(all, k.Alg+" "+k.Kid)
		}
		return strings.Join(all, ", ")
	}
	n := 0
	signsWith := func(alg string) {
		t.Helper()
		n++
		access := d.want(t, 200, "POST", "/signup", "",
			credentials("user"+strconv.Itoa(n)+"@example.org", horse)).str("access_token")
		header, err := base64.RawURLEncoding.DecodeString(strings.Split(access, ".")[0])
		if err != nil || !strings.Contains(string(header), `"alg":"`+alg+`"`) {
			t.Errorf("%v %s, want %s", err, header, alg)
		}
		d.want(t, 200, "GET", "/user", access, "")
	}
	if got := kids(); got != "" {
		t.Error(got)
	}
	signsWith("HS256")
	d.with(t, "AUTH_JWT_ALGORITHM=ES256")
	made := kids()
	if !strings.HasPrefix(made, "ES256 ") {
		t.Error(made)
	}
	signsWith("ES256")
	key, err := token.Generate(token.EdDSA)
	must.Succeed(t, err)
	jwk, err := key.PrivateJWK()
	must.Succeed(t, err)
	d.with(t, "AUTH_JWT_KEYS='["+string(jwk)+"]'")
	if got := kids(); got != "EdDSA "+key.ID() {
		t.Error(got)
	}
	signsWith("EdDSA")
	d.with(t, "AUTH_JWT_ALGORITHM=ES256")
	if got := kids(); got != made {
		t.Errorf("%s, want %s", got, made)
	}
	signsWith("ES256")
}

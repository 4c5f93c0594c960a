package test

import (
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/totp"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/await"
)

// app enrolls an authenticator app and answers a challenge of it: the factor, and the session's next tokens.
func (d *tuned) app(t *testing.T, access string) (factor string, session answer) {
	t.Helper()
	enrolled := d.want(t, 200, "POST", "/factors", access, `{"factor_type":"totp"}`)
	secret, _ := enrolled.body["totp"].(map[string]any)["secret"].(string)
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	factor = enrolled.str("id")
	challenge := d.want(t, 200, "POST", "/factors/"+factor+"/challenge", access, "").str("id")
	answered := `{"challenge_id":"` + challenge + `","code":"` + totp.Code(key, totp.Step(time.Now())) + `"}`
	return factor, d.want(t, 200, "POST", "/factors/"+factor+"/verify", access, answered)
}

func TestEffects_factors(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	with := func(more ...string) { t.Helper(); d.with(t, append(more, auto)...) }
	signUp := func() string {
		t.Helper()
		return d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	}
	with()
	factor, session := d.app(t, signUp())
	access := session.str("access_token")
	challenge := "/factors/" + factor + "/challenge"
	for setting, want := range map[string]float64{"": 300, "AUTH_MFA_CHALLENGE_EXPIRY_DURATION=10m": 600} {
		with(setting)
		id := d.want(t, 200, "POST", challenge, access, "").str("id")
		if life := rows[float64](t, d.database,
			`select extract(epoch from expires_at - created_at)::float8 from challenges where id = $1::text::uuid`,
			id); !slices.Equal(life, []float64{want}) {
			t.Errorf("%q: a challenge lives %v s, want %v", setting, life, want)
		}
	}
	with("AUTH_MFA_TOTP_VERIFY_ENABLED=false")
	d.refuses(t, "mfa_totp_verify_not_enabled", "POST", challenge, access, "")

	const second = `{"factor_type":"totp","friendly_name":"second"}`
	with("AUTH_MFA_MAX_VERIFIED_FACTORS=1")
	d.refuses(t, "too_many_enrolled_mfa_factors", "POST", "/factors", access, second)
	with("AUTH_MFA_MAX_VERIFIED_FACTORS=2")
	d.want(t, 200, "POST", "/factors", access, second)
}

func TestEffects_phoneFactors(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	with := func(more ...string) {
		t.Helper()
		d.with(t, append(more, "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_EXTERNAL_PHONE_ENABLED=true",
			"AUTH_SMS_MAX_FREQUENCY=0", "AUTH_MFA_PHONE_ENROLL_ENABLED=true", "AUTH_MFA_PHONE_VERIFY_ENABLED=true")...)
	}
	with("AUTH_MFA_PHONE_MAX_FREQUENCY=1h") // longer than any machine is slow
	access := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	const number = "4915112345678"
	challenge := "/factors/" + d.want(t, 200, "POST", "/factors", access,
		`{"factor_type":"phone","phone":"+`+number+`"}`).str("id") + "/challenge"
	sent := 0
	code := func(form string) {
		t.Helper()
		d.want(t, 200, "POST", challenge, access, "")
		sent++
		var list []struct{ Text string }
		await.True(t, "the SMS", func() bool {
			a, err := call("GET", d.mailbox+"/messages?to="+url.QueryEscape(number), "", "")
			return err == nil && json.Unmarshal([]byte(a.text), &list) == nil && len(list) == sent
		})
		if !regexp.MustCompile(form).MatchString(list[0].Text) {
			t.Errorf("the SMS is %q, want %s", list[0].Text, form)
		}
	}
	code(`^Your code is \d{6}$`)
	d.refuses(t, "over_sms_send_rate_limit", "POST", challenge, access, "")
	with("AUTH_MFA_PHONE_MAX_FREQUENCY=0")
	code(`^Your code is \d{6}$`)
	with("AUTH_MFA_PHONE_MAX_FREQUENCY=0", "AUTH_MFA_PHONE_OTP_LENGTH=8", "AUTH_MFA_PHONE_TEMPLATE={{ .Code }} it is")
	code(`^\d{8} it is$`)
}

// Without a relying party, or with one that no browser takes, nothing that needs it can be switched on.
func TestEffects_relyingParty(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"AUTH_PASSKEY_ENABLED=true":              "AUTH_WEBAUTHN_RP_ID: is required with AUTH_PASSKEY_ENABLED=true",
		"AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true": "AUTH_WEBAUTHN_RP_ID: is required with AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true",
		"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true": "AUTH_WEBAUTHN_RP_ID: is required with AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true",
		"AUTH_WEBAUTHN_RP_ID=127.0.0.1":          "warn  AUTH_WEBAUTHN_RP_ID: must be a host name in lower case",
	} {
		if _, stdout, stderr := command(t, environment("postgres://h/d", "AUTH_DB_DRIVER=mysql", setting), "",
			"check"); !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: check says\n%s%s, want %s", setting, stdout, stderr, want)
		}
	}
}

// The settings of passkeys are live. A challenge of before a change of the relying party is no longer known.
func TestEffects_passkeys(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	const site = "http://localhost:3000"
	with := func(more ...string) {
		t.Helper()
		d.with(t, append([]string{"AUTH_MAILER_AUTOCONFIRM=true", "AUTH_PASSKEY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost",
			"AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop", "AUTH_WEBAUTHN_RP_ORIGINS=" + site}, more...)...)
	}
	options := func(step, bearer string) (challenge string, options map[string]any) {
		t.Helper()
		a := d.want(t, 200, "POST", "/passkeys/"+step+"/options", bearer, "")
		options, _ = a.body["options"].(map[string]any)
		return a.str("challenge_id"), options
	}
	with()
	access := d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse)).str("access_token")
	before, first := options("authentication", "")
	if first["rpId"] != "localhost" || first["timeout"] != 300000.0 || first["userVerification"] != "preferred" {
		t.Errorf("options %v", first)
	}
	with("AUTH_WEBAUTHN_RP_ID=app.localhost", "AUTH_WEBAUTHN_RP_DISPLAY_NAME=Market",
		"AUTH_WEBAUTHN_RP_ORIGINS=http://app.localhost:3000", "AUTH_WEBAUTHN_CHALLENGE_EXPIRY_DURATION=1m",
		"AUTH_PASSKEY_USER_VERIFICATION=required")
	const verify = "/passkeys/authentication/verify"
	d.refuses(t, "webauthn_challenge_not_found", "POST", verify, "", `{"challenge_id":"`+before+`","credential":{}}`)
	_, second := options("authentication", "")
	if second["rpId"] != "app.localhost" || second["timeout"] != 60000.0 || second["userVerification"] != "required" {
		t.Errorf("options %v", second)
	}
	if _, o := options("registration", access); fmt.Sprint(o["rp"]) != "map[id:app.localhost name:Market]" {
		t.Errorf("relying party %v", o["rp"])
	}
	with("AUTH_WEBAUTHN_RP_ORIGINS=http://localhost:3001")
	d.refuses(t, "webauthn_verification_failed", "POST", "/passkeys/registration/verify", access,
		passkeyAnswer(t, d.instance, access, site, new(webauthntest.Authenticator)))
	with("AUTH_PASSKEY_MAX_PASSKEYS_PER_USER=1")
	registerPasskey(t, d.instance, access, func() {})
	d.refuses(t, "too_many_passkeys", "POST", "/passkeys/registration/options", access, "")
	with("AUTH_RATE_LIMIT_BY_PEER=true", "AUTH_RATE_LIMIT_PASSKEY=1")
	options("authentication", "")
	d.refuses(t, "over_request_rate_limit", "POST", "/passkeys/authentication/options", "", "")
}

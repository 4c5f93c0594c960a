package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

const passkeySite = "http://localhost:3000"

// formerCredential is the newest credential of a device, which was made for a user of the former service.
func formerCredential(t *testing.T, d *webauthntest.Authenticator, u *formertest.User, residence string) (id, key []byte) {
	t.Helper()
	o := webauthn.Create(webauthn.RelyingParty{ID: "localhost"}, webauthn.User{ID: webauthn.Encode([]byte(u.ID.String()))},
		webauthn.Selection{ResidentKey: residence})
	must.Succeed(t, must.ErrOf(d.Create(o, passkeySite)))
	made := d.Keys()[len(d.Keys())-1]
	return made.ID, webauthntest.COSE(made.Private.Public())
}

// assertion has a device answer the options of a sign-in.
func assertion(t *testing.T, d *webauthntest.Authenticator, options any) string {
	t.Helper()
	text, err := json.Marshal(options)
	var o webauthn.RequestOptions
	if err != nil || json.Unmarshal(text, &o) != nil {
		t.Fatal(err, string(text))
	}
	raw, err := d.Get(o, passkeySite)
	must.Succeed(t, err)
	return string(raw)
}

// Users with a passkey of a device, a synced one, a security key, or both sign in after a takeover with the credentials
// that they had; so does a passkey that was added between two runs. One whose algorithm is not read is refused.
func TestTakeover_passkeys(t *testing.T) {
	t.Parallel()
	s := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Newest, time.Now())
	const synced = webauthntest.UV | webauthntest.BE | webauthntest.BS
	devices := map[int]*webauthntest.Authenticator{} // by kind of user
	add := func(kind int, flags byte, algorithm int, key func([]byte) []byte) {
		t.Helper()
		devices[kind] = &webauthntest.Authenticator{Flags: flags, Step: 1, Algorithm: algorithm}
		id, public := formerCredential(t, devices[kind], s.User(kind), "required")
		execSQL(t, s.URL, fmt.Sprintf(`insert into auth.webauthn_credentials (user_id, credential_id, public_key, backup_eligible,
			backed_up) values ('%s', '\x%x', '\x%x', %t, %[4]t)`, s.User(kind).ID, id, key(public), flags&webauthntest.BE != 0))
	}
	asIs := func(key []byte) []byte { return key }
	add(1, webauthntest.UV, webauthn.RS256, asIs)
	add(2, synced, 0, asIs)
	add(43, synced, webauthn.EdDSA, asIs)
	securityKey := func(u *formertest.User, d *webauthntest.Authenticator) string {
		t.Helper()
		id, key := formerCredential(t, d, u, "discouraged")
		return strings.ReplaceAll(string(formertest.SecurityKey(id, key)), "'", "''")
	}
	keys := map[int]*webauthntest.Authenticator{3: {Flags: synced}, 43: {Flags: synced}}
	execSQL(t, s.URL, fmt.Sprintf(`update auth.mfa_factors set web_authn_credential = '%s' where factor_type = 'webauthn'`,
		securityKey(s.User(43), keys[43])),
		fmt.Sprintf(`insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, status, created_at, updated_at,
			web_authn_credential) values (gen_random_uuid(), '%s', 'key', 'webauthn', 'verified', now(), now(), '%s')`,
			s.User(3).ID, securityKey(s.User(3), keys[3])))

	env := environment(testdb.Postgres(t), "AUTH_TAKEOVER_SOURCE_URL="+s.URL, "AUTH_PASSKEY_ENABLED=true", "AUTH_PASSKEY_AAL=aal2",
		"AUTH_WEBAUTHN_RP_ID=localhost", "AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop", "AUTH_WEBAUTHN_RP_ORIGINS="+passkeySite,
		"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true", "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys)
	run := func(status int, args ...string) (errs string) {
		t.Helper()
		got, out, errs := command(t, env, "", args...)
		if got != status {
			t.Fatalf("%s: %d %s%s", args, got, out, errs)
		}
		return errs
	}
	const losses = "passwords,saml,web3,oauth"
	run(0, "migrate")
	run(0, "takeover", "-ahead", "-leave-out", losses)
	add(4, webauthntest.UV, 0, asIs)
	add(45, webauthntest.UV, 0, func(key []byte) []byte { // ES384, where it was ES256
		return append([]byte{key[0], key[1], key[2], key[3], 0x38, 34}, key[5:]...)
	})
	if errs := run(1, "takeover", "-leave-out", losses); !strings.Contains(errs, "1 passkeys are of a form that is not read here") ||
		strings.Contains(errs, "security keys") {
		t.Errorf("refused with %s", errs)
	}
	run(0, "takeover", "-leave-out", losses+",passkeys")
	d := start(t, env)

	refreshed := d.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
		`{"refresh_token":"`+s.User(43).Sessions[0].Token+`"}`)
	carried(t, refreshed, s.User(43).Sessions[0])
	for kind, want := range map[int]string{1: "aal2", 2: "aal2", 4: "aal2", 43: "aal1", 45: ""} {
		begun := d.want(t, 200, "POST", "/passkeys/authentication/options", "", "")
		a, err := call("POST", d.http+"/passkeys/authentication/verify", "", `{"challenge_id":"`+begun.str("challenge_id")+
			`","credential":`+assertion(t, devices[kind], begun.body["options"])+`}`)
		if err != nil || (a.status == 200) != (want != "") {
			t.Errorf("passkey of kind %d: %v %d %s", kind, err, a.status, a.text)
		} else if want != "" {
			if _, claims := tokenParts(t, a.str("access_token")); claims["aal"] != want || claims["sub"] != s.User(kind).ID.String() {
				t.Errorf("passkey of kind %d: %v, want %s", kind, claims, want)
			}
		}
	}
	for kind, key := range keys {
		u := s.User(kind)
		low := d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(u.Email, u.Password))
		user, _ := low.body["user"].(map[string]any)
		factors, _ := user["factors"].([]any)
		if len(factors) != 1 {
			t.Fatalf("kind %d has the factors %v", kind, factors)
		}
		path := "/factors/" + fmt.Sprint(factors[0].(map[string]any)["id"])
		access := low.str("access_token")
		begun := d.want(t, 200, "POST", path+"/challenge", access, "")
		options := begun.body["webauthn"].(map[string]any)["credential_options"].(map[string]any)["publicKey"]
		up := d.want(t, 200, "POST", path+"/verify", access, `{"challenge_id":"`+begun.str("id")+
			`","webauthn":{"type":"request","credential_response":`+assertion(t, key, options)+`}}`)
		if _, claims := tokenParts(t, up.str("access_token")); claims["aal"] != "aal2" {
			t.Errorf("security key of kind %d: %v", kind, claims)
		}
	}
}

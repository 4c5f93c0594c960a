package takeover_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/testdb"
)

const credentialRows = `select coalesce(string_agg(concat_ws(' ', coalesce(factor_id::text, 'passkey'), convert_from(credential_id, 'UTF8'),
	coalesce(aaguid::text, 'none'), sign_count, transports, backup_eligible, backed_up, bound, friendly_name), E'\n' order by credential_id), '')
	from webauthn_credentials`

// Security keys and passkeys come with all that a sign-in needs, passkeys also those that were registered, used or
// deleted there between two runs.
func TestCredentials(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ann, ben := m.User(1).ID, m.User(2).ID
	add := func(id, more string) {
		t.Helper()
		m.there(t, `insert into auth.webauthn_credentials (user_id, credential_id, public_key, aaguid, sign_count, transports,
			backup_eligible, backed_up, friendly_name) values ($1, $2, $3, `+more+`)`, ann, []byte(id), formertest.PublicKey())
	}
	const zero = "'00000000-0000-0000-0000-000000000000'"
	add("a synced", zero+`, 0, '["internal", "hybrid"]', true, true, 'Phone'`)
	add("b device", `'fbfc3007-154e-4ecc-8c0b-6e020557d7bd', 5, '[]', false, false, ''`)
	add("c deleted", `null, 1, '["usb"]', false, false, 'Key'`)
	factor := m.User(43).Factors[0].ID
	key := fmt.Sprintf("%s the key of kind 43 none 7 {usb} t t f", factor)
	o := m.must(t, takeover.Ahead)
	for _, want := range []string{"1 security keys and 3 passkeys need AUTH_WEBAUTHN_RP_ID as it was there",
		"1 security keys, and AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED is false: their owners stay at aal1"} {
		if !slices.Contains(strings.Split(o.log, "\n"), "takeover: warning: "+want) {
			t.Errorf("%s\nwant the warning %s", o.log, want)
		}
	}
	want := `passkey a synced none 0 {internal,hybrid} t t f Phone
passkey b device fbfc3007-154e-4ecc-8c0b-6e020557d7bd 5 {} f f f 
passkey c deleted none 1 {usb} f f f Key
` + key + " "
	if got := testdb.One[string](t, m.url, credentialRows); got != want {
		t.Errorf("after -ahead\n%s\nwant\n%s", got, want)
	}
	if level := testdb.One[int](t, m.url, "select aal from sessions where factor_id = $1", factor); level != 2 {
		t.Errorf("the session of a security key is aal%d", level)
	}

	m.there(t, `delete from auth.webauthn_credentials where friendly_name = 'Key'`)
	m.there(t, `update auth.webauthn_credentials set sign_count = 6, user_id = $1 where sign_count = 5`, ben)
	add("d late", `null, 0, '[]', true, false, 'Late'`)
	o = m.must(t, takeover.Last, func(o *takeover.Options) {
		o.Settings.RelyingParty, o.Settings.SecurityKeys = true, true
	})
	if strings.Contains(o.log, "security keys") {
		t.Errorf("there is nothing to warn of:\n%s", o.log)
	}
	if !strings.Contains(o.out, "\npasskeys               3         3         0\n") {
		t.Errorf("the report has no row of 3 passkeys:\n%s", o.out)
	}
	want = `passkey a synced none 0 {internal,hybrid} t t f Phone
passkey b device fbfc3007-154e-4ecc-8c0b-6e020557d7bd 6 {} f f f 
passkey d late none 0 {} t f f Late
` + key + " "
	if got := testdb.One[string](t, m.url, credentialRows); got != want {
		t.Errorf("at last\n%s\nwant\n%s", got, want)
	}
	if owner := testdb.One[string](t, m.url, "select user_id::text from webauthn_credentials where sign_count = 6"); owner != ben.String() {
		t.Errorf("the device is %s's", owner)
	}
}

// What is not read is left out alone, and so is a second one of a credential's id; a source of before has none.
func TestCredentials_leftOut(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ann := m.User(1).ID
	add := func(id string, key []byte) {
		t.Helper()
		m.there(t, `insert into auth.webauthn_credentials (user_id, credential_id, public_key) values ($1, $2, $3)`, ann,
			[]byte(id), key)
	}
	add("read", formertest.PublicKey())
	add("the key of kind 43", formertest.PublicKey())
	add("odd", []byte{0xa0})
	if o := m.run(t, takeover.DryRun); !strings.Contains(o.log, "1 passkeys are of a form that is not read here (first ") {
		t.Error(o.log)
	}
	o := m.must(t, takeover.Last, func(o *takeover.Options) { o.LeaveOut = append(slices.Clone(losses), "passkeys") })
	for _, want := range []string{"passkeys               3         1         2   passkeys 1, same credential 1\n"} {
		if !strings.Contains(o.out, want) {
			t.Errorf("%s\nwant %s", o.out, want)
		}
	}
	if n := testdb.One[int](t, m.url, "select count(*) from webauthn_credentials"); n != 2 {
		t.Errorf("%d credentials", n)
	}

	m = newMove(t, formertest.Oldest)
	if o := m.must(t, takeover.Last); !strings.Contains(o.out, "\npasskeys               0         0         0\n") {
		t.Error(o.out)
	}
}

package test

import (
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/webauthn"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// read is a mail as its reader sees it: the recipient, the subject, and the plain text.
func read(t *testing.T, m smtptest.Mail) (to, subject, text string) {
	t.Helper()
	message := m.Message(t)
	subject, err := new(mime.WordDecoder).DecodeHeader(message.Header.Get("Subject"))
	must.Succeed(t, err)
	_, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	must.Succeed(t, err)
	part, err := multipart.NewReader(message.Body, params["boundary"]).NextPart()
	must.Succeed(t, err)
	body, err := io.ReadAll(part)
	must.Succeed(t, err)
	return strings.Trim(m.To, "<>"), subject, strings.Join(strings.Fields(string(body)), " ")
}

var notices = []string{"PASSWORD_CHANGED", "EMAIL_CHANGED", "PHONE_CHANGED", "IDENTITY_LINKED", "IDENTITY_UNLINKED",
	"MFA_FACTOR_ENROLLED", "MFA_FACTOR_UNENROLLED", "PASSKEY_CREATED", "PASSKEY_DELETED"}

// Every change that a user may be notified of happens to one; each is notified where its flag is on, and only there,
// in the operator's words where they are set and in the built-in ones elsewhere.
func TestNotifications(t *testing.T) {
	t.Parallel()
	type told struct{ kind, to, subject, text string }
	all := []told{
		{"PASSWORD_CHANGED", "ada@example.org", "Your password was changed",
			"The password for your account ada@example.org at localhost:3000 was changed on "},
		{"IDENTITY_LINKED", "ada@example.org", "A new sign-in method was linked to your account",
			"You can now sign in to your account ada@example.org at localhost:3000 with phone."},
		{"PHONE_CHANGED", "ada@example.org", "Your phone number was changed",
			"localhost:3000 was changed from 4915100000007 to 4915100000008 on "},
		{"IDENTITY_UNLINKED", "ada@example.org", "A sign-in method was removed from your account",
			"You can no longer sign in to your account ada@example.org at localhost:3000 with phone."},
		{"MFA_FACTOR_ENROLLED", "ada@example.org", "A new verification method was added to your account",
			"A new verification method (phone) was added to your account ada@example.org"},
		{"MFA_FACTOR_UNENROLLED", "ada@example.org", "A verification method was removed from your account",
			"A verification method (phone) was removed from your account ada@example.org"},
		{"PASSKEY_CREATED", "ada@example.org", "A passkey was added to your account",
			"A passkey (Passkey) was added to your account ada@example.org at localhost:3000 on "},
		{"PASSKEY_DELETED", "ada@example.org", "A passkey was removed from your account",
			"A passkey (Passkey) was removed from your account ada@example.org at localhost:3000 on "},
		{"EMAIL_CHANGED", "ada@example.org", "Your email address was changed",
			"localhost:3000 was changed from ada@example.org to new@example.org on "},
	}
	bodies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `<p>Our own words on `+r.URL.Path[1:]+` to {{ .Email }}.</p>`)
	}))
	t.Cleanup(bodies.Close)
	for _, c := range []struct {
		own bool // AUTH_MAILER_SUBJECTS_*_NOTIFICATION and AUTH_MAILER_TEMPLATES_*_NOTIFICATION are set
		on  []string
	}{
		{true, notices}, {false, []string{"EMAIL_CHANGED", "MFA_FACTOR_ENROLLED", "IDENTITY_LINKED", "PASSKEY_DELETED"}},
		{false, []string{"PASSWORD_CHANGED", "IDENTITY_UNLINKED", "PHONE_CHANGED", "MFA_FACTOR_UNENROLLED",
			"PASSKEY_CREATED"}},
	} {
		on := c.on
		smtp := smtptest.Start(t, smtptest.Options{})
		env := append(environment(testdb.Postgres(t), onSMTP(smtp)...), "AUTH_MAILER_AUTOCONFIRM=true",
			"AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_SMS_MAX_FREQUENCY=0",
			"AUTH_SMS_TEST_OTP=4915100000007:424242,4915100000008:424242", "AUTH_SECURITY_MANUAL_LINKING_ENABLED=true",
			"AUTH_MFA_PHONE_ENROLL_ENABLED=true", "AUTH_MFA_PHONE_VERIFY_ENABLED=true",
			"AUTH_MFA_PHONE_MAX_FREQUENCY=0", "AUTH_PASSKEY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost",
			"AUTH_WEBAUTHN_RP_DISPLAY_NAME=App", "AUTH_WEBAUTHN_RP_ORIGINS=http://localhost:3000")
		for _, kind := range []string{"PASSKEY_CREATED", "PASSKEY_DELETED"} { // on by default
			if !slices.Contains(on, kind) {
				env = append(env, "AUTH_MAILER_NOTIFICATIONS_"+kind+"_ENABLED=false")
			}
		}
		for _, kind := range on {
			env = append(env, "AUTH_MAILER_NOTIFICATIONS_"+kind+"_ENABLED=true")
			if c.own {
				env = append(env, "AUTH_MAILER_SUBJECTS_"+kind+"_NOTIFICATION=our subject of "+kind+" for {{ .Email }}",
					"AUTH_MAILER_TEMPLATES_"+kind+"_NOTIFICATION="+bodies.URL+"/"+kind)
			}
		}
		d := launch(t, t.TempDir(), env)
		d.awaitReady(t)
		// Notifications are awaited one by one, so that the mails come in the sequence of the changes.
		mails := 0
		arrives := func(kind string) {
			t.Helper()
			if slices.Contains(on, kind) {
				mails++
				await.True(t, kind, func() bool { return len(smtp.Mails()) == mails })
			}
		}
		bearer := d.want(t, 200, "POST", "/signup", "",
			`{"email":"ada@example.org","password":"a long enough one"}`).str("access_token")
		d.want(t, 200, "PUT", "/user", bearer, `{"password":"another long one"}`)
		arrives("PASSWORD_CHANGED")
		for _, number := range []string{"4915100000007", "4915100000008"} {
			d.want(t, 200, "PUT", "/user", bearer, `{"phone":"+`+number+`"}`)
			bearer = d.want(t, 200, "POST", "/verify", "",
				`{"type":"phone_change","phone":"+`+number+`","token":"424242"}`).str("access_token")
			arrives(map[string]string{"4915100000007": "IDENTITY_LINKED", "4915100000008": "PHONE_CHANGED"}[number])
		}
		var phone string
		for _, i := range d.want(t, 200, "GET", "/user", bearer, "").body["identities"].([]any) {
			if i := i.(map[string]any); i["provider"] == "phone" {
				phone, _ = i["identity_id"].(string)
			}
		}
		d.want(t, 200, "DELETE", "/user/identities/"+phone, bearer, "")
		arrives("IDENTITY_UNLINKED")
		factor := "/factors/" + d.want(t, 200, "POST", "/factors", bearer,
			`{"factor_type":"phone","phone":"+4915100000007","friendly_name":"p"}`).str("id")
		challenge := d.want(t, 200, "POST", factor+"/challenge", bearer, "").str("id")
		bearer = d.want(t, 200, "POST", factor+"/verify", bearer,
			`{"challenge_id":"`+challenge+`","code":"424242"}`).str("access_token")
		arrives("MFA_FACTOR_ENROLLED")
		d.want(t, 200, "DELETE", factor, bearer, "")
		arrives("MFA_FACTOR_UNENROLLED")
		d.want(t, 204, "DELETE", "/passkeys/"+registerPasskey(t, d, bearer, func() { arrives("PASSKEY_CREATED") }), bearer, "")
		arrives("PASSKEY_DELETED")
		d.want(t, 200, "PUT", "/user", bearer, `{"email":"new@example.org"}`)
		mails++
		await.True(t, "the mail to the new address", func() bool { return len(smtp.Mails()) == mails })
		links := newSentMails(smtp)
		d.want(t, 200, "POST", "/verify", "",
			`{"type":"email_change","token_hash":"`+links.to(t, "new@example.org")[0].token+`"}`)
		arrives("EMAIL_CHANGED")

		var got []told
		for _, m := range smtp.Mails() {
			to, subject, text := read(t, m)
			if to != "new@example.org" {
				got = append(got, told{"", to, subject, text})
			}
		}
		i := 0
		for _, want := range all {
			if !slices.Contains(on, want.kind) {
				continue
			}
			if c.own {
				email := "ada@example.org"
				if want.kind == "EMAIL_CHANGED" {
					email = "new@example.org" // the notification goes to the previous one
				}
				want.subject, want.text = "our subject of "+want.kind+" for "+email,
					"Our own words on "+want.kind+" to "+email+"."
			}
			if i >= len(got) || got[i].to != want.to || got[i].subject != want.subject ||
				!strings.Contains(got[i].text, want.text) {
				t.Errorf("%v: mail %d: %+v, want %+v", on, i, got, want)
				break
			}
			i++
		}
		if i != len(got) {
			t.Errorf("%v: %d mails, want %d: %+v", on, len(got), i, got)
		}
	}
}

// registerPasskey registers a passkey of the page at http://localhost:3000 and returns its id.
func registerPasskey(t *testing.T, d *instance, bearer string, registered func()) string {
	t.Helper()
	id := d.want(t, 200, "POST", "/passkeys/registration/verify", bearer,
		passkeyAnswer(t, d, bearer, passkeySite, new(webauthntest.Authenticator))).str("id")
	registered()
	return id
}

// passkeyAnswer begins a registration and returns what an authenticator answers on a page.
func passkeyAnswer(t *testing.T, d *instance, bearer, page string, device *webauthntest.Authenticator) string {
	t.Helper()
	begun := d.want(t, 200, "POST", "/passkeys/registration/options", bearer, "")
	text, err := json.Marshal(begun.body["options"])
	must.Succeed(t, err)
	var o webauthn.CreationOptions
	must.Succeed(t, json.Unmarshal(text, &o))
	credential, err := device.Create(o, page)
	must.Succeed(t, err)
	return `{"challenge_id":"` + begun.str("challenge_id") + `","credential":` + string(credential) + `}`
}

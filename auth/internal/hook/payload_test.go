package hook

import (
	"encoding/json"
	"testing"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// What the hook of mails gets where a user and a mail differ: an address that the user has no more, and halves of a
// change that were ordered as two mails, before there was a hook.
func TestEmailInput(t *testing.T) {
	u := store.User{Email: "now@example.org"}
	f := func(p mail.Payload, want emailData) {
		t.Helper()
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		u := u
		in, ip, err := EmailInput(text, &u, "", true, func(*mail.Payload) string { return "de" })
		want.Action, want.Locale = string(p.Kind), "de"
		if err != nil || in["email_data"] != want || ip != p.IP || u.NewEmail != p.Vars.NewEmail {
			t.Errorf("%+v, %s, %v; want %+v", in["email_data"], ip, err, want)
		}
	}
	f(mail.Payload{To: "old@example.org", IP: "192.0.2.1", Kind: mail.IdentityUnlinked,
		Vars: mail.Vars{Provider: "github"}}, emailData{OldEmail: "old@example.org", Provider: "github"})
	f(mail.Payload{To: "now@example.org", Kind: mail.IdentityUnlinked, Vars: mail.Vars{Provider: "github"}},
		emailData{Provider: "github"})
	v := mail.Vars{NewEmail: "new@example.org", Token: "1", TokenHash: "a"}
	f(mail.Payload{To: "now@example.org", Kind: mail.EmailChange, Vars: v}, emailData{Token: "1", TokenHashNew: "a"})
	f(mail.Payload{To: "new@example.org", Kind: mail.EmailChange, Vars: v}, emailData{TokenNew: "1", TokenHash: "a"})
	u.Email = ""
	f(mail.Payload{To: "new@example.org", Kind: mail.EmailChange, Vars: v}, emailData{Token: "1", TokenHash: "a"})
}

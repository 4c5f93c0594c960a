package takeover

import "testing"

func TestProvenEmail(t *testing.T) {
	for _, f := range []struct{ provider, data, want string }{
		{"email", `{"email": "Ann@example.org"}`, "ann@example.org"},
		{"github", `{"email": "Ann@example.org", "email_verified": true}`, "ann@example.org"},
		{"github", `{"email": "ann@example.org", "email_verified": "true"}`, ""},
		{"github", `{"email": "ann@example.org"}`, ""},
		{"github", `{"email": 7, "email_verified": true}`, ""},
		{"github", `[]`, ""},
		// Another claim is no proof, however similar its name.
		{"github", `{"email": "ann@example.org", "Email_Verified": true}`, ""},
		{"github", `{"EMAIL": "ann@example.org", "email_verified": true}`, ""},
	} {
		if got := provenEmail(f.provider, []byte(f.data)); got != f.want {
			t.Errorf("provenEmail(%q, %s) = %q, want %q", f.provider, f.data, got, f.want)
		}
	}
}

package takeover

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/former"
)

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

// An anonymous user whose address was proven is carried over as a permanent one.
func TestUser_anonymous(t *testing.T) {
	for email, want := range map[string]bool{"mia@example.org": false, "": true} {
		u := former.User{ID: uuid.New(), Anonymous: true, Email: email}
		if email != "" {
			u.EmailConfirmedAt = time.Now()
		}
		if c, err := new(mapper).user(&u); err != nil || c.IsAnonymous != want || c.EmailUnproven {
			t.Errorf("with %q: got anonymous %t, unproven %t, %v, want anonymous %t", email, c.IsAnonymous, c.EmailUnproven,
				err, want)
		}
	}
}

// A sign-up without metadata has none, not an empty object, which would make it a sign-up of its own.
func TestSignupData(t *testing.T) {
	for text, want := range map[string]string{``: "", `[1]`: "", `{}`: "", `{"sub": "x", "email_verified": false}`: "",
		`{"sub": "x", "nick": "mi"}`: `{"nick":"mi"}`} {
		if got := signupData([]byte(text)); string(got) != want || want == "" && got != nil {
			t.Errorf("signupData(%s) = %s, want %q", text, got, want)
		}
	}
}

// An error of the database shows no value of a row, and what a pooler in between needs.
func TestHideValues(t *testing.T) {
	const pooler = "; behind a pooler: default_query_exec_mode=cache_describe"
	for code, more := range map[string]string{"23505": " (table users, constraint users_email_key)",
		"42P05": " (table users, constraint users_email_key)" + pooler,
		"26000": " (table users, constraint users_email_key)" + pooler} {
		err := hideValues(&pgconn.PgError{Code: code, Message: "ann@example.org", TableName: "users",
			ConstraintName: "users_email_key"})
		if want := "the database refuses it: SQLSTATE " + code + more; err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

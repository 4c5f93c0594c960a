package formertest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/secret"
)

// Carry writes the users of a source and their valid sessions into the daemon's tables, and records a closed takeover,
// as a takeover would. It is for tests of refresh tokens and links after a takeover. exec executes a statement in the
// daemon's database.
func Carry(t testing.TB, exec func(sql string, args ...any), root *secret.Root, s *Source, linksUntil time.Time) {
	t.Helper()
	for _, u := range s.Users {
		for i, v := range u.Sessions {
			if v.Left {
				continue
			}
			if i == 0 {
				carried := CarriedUser{ID: u.ID, At: s.Now, Email: u.Email, Phone: u.Phone}
				if u.Email != "" {
					carried.Confirmed = &s.Now
				}
				carried.Carry(exec)
			}
			token, ok := former.ParseToken(v.Token)
			if !ok {
				t.Fatalf("kind %d: %s is no token", u.Kind, v.Token)
			}
			amr, err := json.Marshal(v.AMR)
			if err != nil {
				t.Fatal(err)
			}
			hash := token.SecretHash(root)
			exec(`insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, aal, amr) values ($1, $2, $3, $4, $5, $6, $7)`,
				v.ID, u.ID, s.Now.Add(-2*day), hash[:], s.Now.Add(-time.Hour), v.AAL, amr)
			if token.Version == 1 {
				exec(`insert into former_tokens (token_mac, session_id) values ($1, $2)`, token.MAC(root), v.ID)
			}
		}
	}
	var until any
	if !linksUntil.IsZero() {
		until = linksUntil
	}
	exec(`insert into moves (id, kind, source, state, steps, started_at, closed_at)
		values ($1, 'takeover', 'localhost:5432/app auth', 'closed', jsonb_build_object('links_until', $2::timestamptz), $3, $3)`,
		uuid.New(), until, s.Now.Add(-time.Minute))
}

// CarriedUser is a user of the former service. At is when the user was created. Confirmed is when the user confirmed
// the email address; nil: never.
type CarriedUser struct {
	ID           uuid.UUID
	At           time.Time
	Email, Phone string
	Confirmed    *time.Time
}

// Carry writes the user, with an identity for the email address, into the daemon's tables.
func (u CarriedUser) Carry(exec func(sql string, args ...any)) {
	exec(`with u as (
			insert into users (id, aud, created_at, updated_at, role, email, phone, email_confirmed_at)
			values ($1, 'authenticated', $2, $2, 'authenticated', $3, $4, $5) returning *
		)
		insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
		select gen_random_uuid(), id, 'email', id, email, '{}', created_at, created_at from u where email <> ''`,
		u.ID, u.At, u.Email, u.Phone, u.Confirmed)
}

// CarriedLink is a mailed link of the former service. Its user is in the daemon's tables.
type CarriedLink struct {
	User                uuid.UUID
	Kind, Address, Text string
	Expires             time.Time
}

// Carry writes the link into the daemon's table one_time_tokens, with the link's kind.
func (l CarriedLink) Carry(exec func(sql string, args ...any)) {
	hash, _ := former.LinkHash(l.Text)
	exec(`insert into one_time_tokens (id, user_id, kind, address, link_hash, created_at, expires_at) values ($1, $2, $3, $4, $5, $6, $7)`,
		uuid.New(), l.User, l.Kind, l.Address, hash[:], l.Expires.Add(-time.Hour), l.Expires)
}

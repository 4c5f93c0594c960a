package store_test

import (
	"crypto/sha256"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// noon is the time at which every test begins.
var noon = time.Date(2031, 3, 4, 12, 0, 0, 123456000, time.UTC)

// secretOf is what a test's sessions are proven with.
var secretOf = sha256.Sum256([]byte("secret"))

func send(t *testing.T, db *store.DB, fill func(*store.Batch)) {
	t.Helper()
	must.Succeed(t, try(t, db, fill))
}

func try(t *testing.T, db *store.DB, fill func(*store.Batch)) error {
	t.Helper()
	b := db.Batch()
	fill(b)
	return b.Send(t.Context())
}

func newUser(email string) store.User {
	return store.User{
		ID: uuid.New(), Aud: "authenticated", Role: "authenticated", Email: email, PasswordHash: "hash",
		AppMetadata:  json.RawMessage(`{"provider": "email", "providers": ["email"]}`),
		UserMetadata: json.RawMessage(`{"nick": "mi"}`),
		CreatedAt:    noon, UpdatedAt: noon, EmailConfirmedAt: noon,
	}
}

func emailIdentity(u store.User) store.Identity {
	return store.Identity{
		ID: uuid.New(), UserID: u.ID, Provider: "email", ProviderID: u.ID.String(), Email: u.Email,
		Data: json.RawMessage(`{"email": "` + u.Email + `", "email_verified": false}`), LastSignInAt: noon,
		CreatedAt: noon,
		UpdatedAt: noon,
	}
}

// addUser adds a confirmed user with an e-mail identity.
func addUser(t *testing.T, db *store.DB, email string) store.User {
	t.Helper()
	u := newUser(email)
	u.Identities = []store.Identity{emailIdentity(u)}
	send(t, db, func(b *store.Batch) {
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
	})
	return u
}

func newSession(u store.User, at time.Time) store.NewSession {
	return store.NewSession{ID: uuid.New(), User: u.ID, SecretHash: secretOf, At: at, UserAgent: "agent",
		IP:  "192.0.2.1",
		AAL: 1, AMR: json.RawMessage(`[{"method": "password", "timestamp": 1930000000}]`)}
}

// addSession opens a session of that age.
func addSession(t *testing.T, db *store.DB, u store.User, at time.Time) uuid.UUID {
	t.Helper()
	s := newSession(u, at)
	send(t, db, func(b *store.Batch) { b.InsertSession(s) })
	return s.ID
}

func session(t *testing.T, db *store.DB, u store.User, id uuid.UUID) store.Session {
	t.Helper()
	_, s, err := db.Caller(t.Context(), u.ID, id)
	must.Succeed(t, err)
	return s
}

// trail is the log's actions, oldest first.
func trail(t *testing.T, db *store.DB) (actions []string) {
	t.Helper()
	rows, _, err := db.AuditLog(t.Context(), store.AuditFilter{Limit: 1000})
	must.Succeed(t, err)
	for _, r := range rows {
		actions = append([]string{r.Action.String()}, actions...)
	}
	return actions
}

func ptr[T any](v T) *T { return &v }

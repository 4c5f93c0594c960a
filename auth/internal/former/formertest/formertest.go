// Package formertest creates the former service's schema, and fills it with users of every kind that can occur.
//
// It is for tests only. The rows depend only on the given time and the release: two sources that are created for the
// same time have the same rows.
package formertest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
)

// Release says which version of the schema is created.
type Release int

const (
	// Newest is the newest version that is supported, with row-level security enabled.
	Newest Release = iota
	// Oldest is the oldest version that a takeover supports. It lacks the tables and columns that were added later.
	Oldest
)

//go:embed newest.sql
var newest string

//go:embed oldest.sql
var oldest string

//go:embed app.sql
var application string

// AddApplication adds an application to the schema, which must be named auth. The application has triggers, foreign
// keys, policies, views and functions that use the schema's tables. The schema gets an owner of its own.
func AddApplication(t testing.TB, url string) {
	t.Helper()
	Exec(t, url, application)
}

// CreateSchema creates the schema with empty tables. name must have only lower-case letters.
func CreateSchema(t testing.TB, url, name string, release Release) {
	t.Helper()
	sql := newest
	if release == Oldest {
		sql = oldest
	}
	sql = strings.ReplaceAll(sql, "auth.", name+".")
	Exec(t, url, strings.ReplaceAll(sql, "create schema auth;", "create schema "+name+";"))
}

// Exec executes statements in a database, with the role in url.
func Exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol} // allows several statements
	}
	if _, err := c.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Source is a schema that was filled with users.
type Source struct {
	URL, Schema string
	Release     Release
	// Now is the time for which the rows were made.
	Now time.Time
	// Users are sorted by their kinds.
	Users []*User
}

// The key with which columns are encrypted.
const (
	// KeyID is the name of the key in the columns.
	KeyID = "k1"
	// Keys is the setting that has the key.
	Keys = KeyID + ":AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
)

// User is a user of the source, with what the user and the user's client know, beyond what is in the tables.
type User struct {
	// Kind is the number of what is special about the user; the method writer.kinds has all kinds.
	Kind int
	Name string
	ID   uuid.UUID
	// Email is in lower case, as the user enters it. Phone has no plus.
	Email, Phone string
	// Password is "" if the user has none or the test does not know it.
	Password string
	Sessions []Session
	Factors  []Factor
	Links    []Link
}

// Session is a session of a user of the source.
type Session struct {
	ID uuid.UUID
	// Version is the version of the session's refresh tokens, Token the valid token.
	Version int
	Token   string
	// Dead are texts that are not valid tokens of the session: former and revoked tokens, and, for version 2, a token
	// that was never issued.
	Dead []string
	AAL  int
	AMR  []AMR
	// Factor is the factor that has raised the session's level.
	Factor uuid.UUID
	// Left is true if the session is not copied, because it has expired or belongs to an OAuth client.
	Left bool
}

// AMR is a method with which a session was authenticated.
type AMR struct {
	Method string `json:"method"`
	At     int64  `json:"timestamp"`
}

// Factor is a second factor of a user of the source.
type Factor struct {
	ID       uuid.UUID
	Type     string
	Name     string
	Phone    string
	Verified bool
	// Key is the key of a TOTP factor, in base32 as authenticator apps expect it.
	Key string
}

// Link is a link that the former service has mailed.
type Link struct {
	// Type is the type of the link's token in the source. Token is the text in the link, with the prefix pkce_ if it
	// continues a PKCE flow.
	Type, Address, Token string
	Sent                 time.Time
	// Verifier is the verifier of the PKCE flow; "" if there is none.
	Verifier string
}

// Fill creates the schema and adds users of each kind. The oldest release has no sessions with tokens of version 2, no
// phone factors and no OAuth clients, so the kinds that need these are missing there.
func Fill(t testing.TB, url, schema string, release Release, now time.Time) *Source {
	t.Helper()
	CreateSchema(t, url, schema, release)
	s := &Source{URL: url, Schema: schema, Release: release, Now: now.UTC().Truncate(time.Second)}
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{Source: s, t: t, tx: tx}
	w.kinds()
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(s.Users, func(a, b *User) int { return a.Kind - b.Kind })
	return s
}

// User returns the first user of a kind, or nil if the release lacks this kind.
func (s *Source) User(kind int) *User {
	for _, u := range s.Users {
		if u.Kind == kind {
			return u
		}
	}
	return nil
}

// Live returns the sessions that a takeover copies.
func (s *Source) Live() (live []Session) {
	for _, u := range s.Users {
		for _, v := range u.Sessions {
			if !v.Left {
				live = append(live, v)
			}
		}
	}
	return live
}

// Private returns the texts that no output and no log may contain: addresses, phone numbers, passwords, tokens, links
// and keys.
func (s *Source) Private() (texts []string) {
	add := func(text string) {
		if text != "" {
			texts = append(texts, text)
		}
	}
	for _, u := range s.Users {
		add(u.Email)
		add(u.Phone)
		add(u.Password)
		for _, v := range u.Sessions {
			texts = append(append(texts, v.Token), v.Dead...)
		}
		for _, f := range u.Factors {
			add(f.Key)
		}
		for _, l := range u.Links {
			add(strings.TrimPrefix(l.Token, former.PKCEPrefix))
		}
	}
	return append(texts, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", "$2a$", "$argon2id$")
}

// writer inserts the rows.
type writer struct {
	*Source
	t  testing.TB
	tx pgx.Tx
}

// row has the columns of a row to be inserted.
type row map[string]any

func (w *writer) insert(table string, r row) {
	w.t.Helper()
	var columns, params []string
	var args []any
	for column, value := range r {
		columns, args = append(columns, column), append(args, value)
		params = append(params, fmt.Sprintf("$%d", len(args)))
	}
	sql := fmt.Sprintf("insert into %s.%s (%s) values (%s)", w.Schema, table, strings.Join(columns, ", "),
		strings.Join(params, ", "))
	if _, err := w.tx.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// id returns a UUID that depends only on the formatted name.
func id(format string, args ...any) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, format, args...))
}

// text returns n characters of an alphabet, which depend only on name.
func text(alphabet string, n int, name string) string {
	var b strings.Builder
	sum := sha256.Sum256([]byte(name))
	for i := range n {
		b.WriteByte(alphabet[int(sum[i])%len(alphabet)])
	}
	return b.String()
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Encrypt returns the value that the former service, if encryption is on, stores for a text in the row with this id.
func Encrypt(plain string, id uuid.UUID) string {
	nonce := sha256.Sum256([]byte(plain + id.String()))
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	return encrypt(plain, id, key, nonce[:12])
}

func encrypt(plain string, id uuid.UUID, key, nonce []byte) string {
	derived, err := hkdf.Key(sha256.New, key, nil, id.String(), 32)
	if err != nil {
		panic(err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`{"key_id":%q,"alg":"aes-gcm-hkdf","data":%q,"nonce":%q}`, KeyID,
		encode(aead.Seal(nil, nonce, []byte(plain), nil)), encode(nonce))
}

// Version2 returns a refresh token of version 2. The session need not exist.
func Version2(session uuid.UUID, counter uint64, key []byte) string {
	return former.NewVersion2(session, counter, key)
}

// keyText returns the text in which a session's key is stored.
func keyText(key []byte) string { return base64.RawURLEncoding.EncodeToString(key) }

// LinkToken returns the token in the link that the former service mails together with a code, if no PKCE flow continues
// the link.
func LinkToken(address, code string) string {
	return fmt.Sprintf("%x", sha256.Sum224([]byte(address+code)))
}

// Challenge returns the S256 challenge of a PKCE verifier.
func Challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

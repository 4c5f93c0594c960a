// Package formertest makes the replaced service's schema, with users of every kind that it has.
//
// It is for tests only. What it makes depends on nothing but the time and the release: two sources made at one time
// hold the same rows.
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

// Release is how old the schema is.
type Release int

const (
	// Newest is the youngest schema that is known, with row security on.
	Newest Release = iota
	// Oldest is the one that a takeover needs at least. It lacks the columns and tables that came later.
	Oldest
)

//go:embed newest.sql
var newest string

//go:embed oldest.sql
var oldest string

//go:embed app.sql
var application string

// AddApplication gives the schema, which is called auth, an owner of its own, and an application that has triggers,
// keys, policies, views and functions on its tables.
func AddApplication(t testing.TB, url string) {
	t.Helper()
	Exec(t, url, application)
}

// CreateSchema makes the schema with its tables, without rows. Name is plain: lower-case letters.
func CreateSchema(t testing.TB, url, name string, release Release) {
	t.Helper()
	sql := newest
	if release == Oldest {
		sql = oldest
	}
	sql = strings.ReplaceAll(sql, "auth.", name+".")
	Exec(t, url, strings.ReplaceAll(sql, "create schema auth;", "create schema "+name+";"))
}

// Exec runs statements on a database as its owner.
func Exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol} // which takes several statements
	}
	if _, err := c.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Source is the filled schema.
type Source struct {
	URL, Schema string
	Release     Release
	// Now is the time that the rows are made for.
	Now time.Time
	// Users are in the order of their kinds.
	Users []*User
}

// The key of the encrypted columns.
const (
	// KeyID is the name by which the columns refer to their key.
	KeyID = "k1"
	// Keys is the setting that opens them.
	Keys = KeyID + ":AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
)

// User is a user there, with what is known of a person and a client, and not only of the tables.
type User struct {
	// Kind is what is special about it: TestKinds has the list.
	Kind int
	Name string
	ID   uuid.UUID
	// Email is as the user types it, in lower case; Phone without plus.
	Email, Phone string
	// Password is "" without one, and where it is not known.
	Password string
	Sessions []Session
	Factors  []Factor
	Links    []Link
}

// Session is one there.
type Session struct {
	ID uuid.UUID
	// Version is that of its tokens, Token the live one.
	Version int
	Token   string
	// Dead are texts that were tokens of it: parents and revoked ones; of version 2 one that it never had, too.
	Dead []string
	AAL  int
	AMR  []AMR
	// Factor is the one that raised its level.
	Factor uuid.UUID
	// Left: it is not carried over, since it is over or of an OAuth client.
	Left bool
}

// AMR is a method that a session was authenticated with, newest first.
type AMR struct {
	Method string `json:"method"`
	At     int64  `json:"timestamp"`
}

// Factor is a second factor there.
type Factor struct {
	ID       uuid.UUID
	Type     string
	Name     string
	Phone    string
	Verified bool
	// Key is a TOTP factor's, in base32 as authenticators want it.
	Key string
}

// Link is a link that was mailed.
type Link struct {
	// Type is the token's type there, Token the text in the link, with pkce_ where a flow continues it.
	Type, Address, Token string
	Sent                 time.Time
	// Verifier is the PKCE flow's; "" without one.
	Verifier string
}

// Fill makes the schema with a user of each kind. The oldest release has no sessions with tokens of version 2, no phone
// factors and no OAuth clients; the kinds that need them are missing there.
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

// User returns the first user of a kind, nil where the release lacks it.
func (s *Source) User(kind int) *User {
	for _, u := range s.Users {
		if u.Kind == kind {
			return u
		}
	}
	return nil
}

// Live returns the sessions that are carried over.
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

// Private returns the texts that nothing may show: addresses, numbers, passwords, tokens, links and keys.
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

// writer makes the rows.
type writer struct {
	*Source
	t  testing.TB
	tx pgx.Tx
}

// row are the columns of one that is to be inserted.
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

// id is a UUID that depends on its name alone.
func id(format string, args ...any) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, format, args...))
}

// text is one of that many characters of an alphabet, which depends on its name alone.
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

// Encrypt returns what the service stores of a text with encryption on, in a row with that id.
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

// Version2 returns a refresh token of that form, whose session may be any.
func Version2(session uuid.UUID, counter uint64, key []byte) string {
	return former.NewVersion2(session, counter, key)
}

// keyText is how a session's key is stored.
func keyText(key []byte) string { return base64.RawURLEncoding.EncodeToString(key) }

// LinkToken returns the token that the service mails with a code, in a link that no flow continues.
func LinkToken(address, code string) string {
	return fmt.Sprintf("%x", sha256.Sum224([]byte(address+code)))
}

// Challenge is the S256 challenge of a verifier.
func Challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

package formertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/password"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Everything that a source says of its users is what the tables hold.
func TestFill(t *testing.T) {
	t.Parallel()
	keys, err := former.ParseKeys(Keys)
	must.Succeed(t, err)
	for _, release := range []Release{Newest, Oldest} {
		url := testdb.Postgres(t)
		s := Fill(t, url, "there", release, time.Now())
		kinds := map[int]bool{}
		for _, u := range s.Users {
			kinds[u.Kind] = true
		}
		for kind := 1; kind <= 47; kind++ {
			late := slices.Contains([]int{13, 38, 39, 40, 42}, kind)
			if kinds[kind] != (release == Newest || !late) {
				t.Errorf("release %d: kind %d is there: %v", release, kind, kinds[kind])
			}
		}
		c, err := pgx.Connect(t.Context(), url)
		must.Succeed(t, err)
		defer c.Close(context.Background())
		f := filled{t: t, conn: c, release: release, keys: keys}
		for _, u := range s.Users {
			for _, v := range u.Sessions {
				f.session(u.Kind, v)
			}
			for _, l := range u.Links {
				text := l.Token
				if l.Verifier != "" {
					text = text[len(former.PKCEPrefix):]
				}
				if _, ok := former.LinkHash(text); !ok {
					t.Errorf("kind %d: link %q", u.Kind, l.Token)
				}
			}
			var hash *string
			must.Succeed(t, c.QueryRow(t.Context(), `select encrypted_password from there.users where id = $1`,
				u.ID).Scan(&hash))
			if u.Password == "" {
				continue
			}
			if err := password.ValidImport(f.unsealed(*hash, u.ID)); err != nil {
				t.Errorf("kind %d: %v", u.Kind, err)
			}
		}
		if len(s.Live()) < 19 || len(s.Private()) < 100 {
			t.Errorf("%d sessions, %d private texts", len(s.Live()), len(s.Private()))
		}
	}
}

// filled checks rows of a source, which are in the schema there.
type filled struct {
	t       *testing.T
	conn    *pgx.Conn
	release Release
	keys    former.Keys
}

// unsealed returns what the row of id has as text, decrypted if the text is encrypted.
func (f filled) unsealed(text string, id uuid.UUID) string {
	f.t.Helper()
	e, sealed := former.ParseEncrypted(text)
	if !sealed {
		return text
	}
	plain, err := e.Open(f.keys, id)
	if err != nil {
		f.t.Error(err)
	}
	return plain
}

// session checks the row of a session and its tokens. kind is the user's.
func (f filled) session(kind int, v Session) {
	f.t.Helper()
	hmac := "refresh_token_hmac_key"
	if f.release == Oldest {
		hmac = "null"
	}
	var key, live *string
	var n int
	err := f.conn.QueryRow(f.t.Context(), `select `+hmac+`, (select token from there.refresh_tokens where session_id = s.id and revoked is not true
			order by id desc limit 1), (select count(*) from there.mfa_amr_claims where session_id = s.id) from there.sessions s where id = $1`, v.ID).
		Scan(&key, &live, &n)
	if err != nil || n != len(v.AMR) {
		f.t.Fatalf("kind %d: %d methods, %v", kind, n, err)
	}
	token, ok := former.ParseToken(v.Token)
	if !ok || token.Version != v.Version || (key != nil) != (v.Version == 2) || (live != nil) != (v.Version == 1) {
		f.t.Errorf("kind %d: token %+v, %v", kind, token, ok)
	}
	if key != nil {
		raw, ok := former.SessionKey(f.unsealed(*key, v.ID))
		if !ok || former.NewVersion2(v.ID, token.Counter, raw) != v.Token {
			f.t.Errorf("kind %d: another token", kind)
		}
	} else if *live != v.Token {
		f.t.Errorf("kind %d: live is %s", kind, *live)
	}
	for _, dead := range v.Dead {
		if _, ok := former.ParseToken(dead); !ok {
			f.t.Errorf("kind %d: %s is no token", kind, dead)
		}
	}
}

// Two sources filled for the same time are equal.
func TestFill_same(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := func() (all []string) {
		for _, v := range Fill(t, testdb.Postgres(t), "auth", Newest, now).Live() {
			all = append(all, v.Token)
		}
		return all
	}
	if a, b := tokens(), tokens(); !slices.Equal(a, b) {
		t.Errorf("%q and %q", a, b)
	}
}

func TestLinkToken(t *testing.T) {
	const want = "7f7f594ffecfb07211fbf02b0fe0357fc146dc4091c3c02acac3c767"
	if got := LinkToken("ann@example.org", "123456"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestEncrypt(t *testing.T) {
	const want = `{"key_id":"k1","alg":"aes-gcm-hkdf","data":"Sd0RH30LsinTvfq0YAop0Iuh2Zp5ci7kGomjiIe5qZY=","nonce":"AAAAAAAAAAAAAAAA"}`
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	got := encrypt("JBSWY3DPEHPK3PXP", uuid.MustParse("00112233-4455-4677-8899-aabbccddeeff"), key, make([]byte, 12))
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

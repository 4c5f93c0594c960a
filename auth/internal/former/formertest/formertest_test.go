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
		hmac := "refresh_token_hmac_key"
		if release == Oldest {
			hmac = "null"
		}
		for _, u := range s.Users {
			for _, v := range u.Sessions {
				var key, live *string
				var n int
				err := c.QueryRow(t.Context(), `select `+hmac+`, (select token from there.refresh_tokens where session_id = s.id and revoked is not true
					order by id desc limit 1), (select count(*) from there.mfa_amr_claims where session_id = s.id) from there.sessions s where id = $1`, v.ID).
					Scan(&key, &live, &n)
				if err != nil || n != len(v.AMR) {
					t.Fatalf("kind %d: %d methods, %v", u.Kind, n, err)
				}
				token, ok := former.ParseToken(v.Token)
				if !ok || token.Version != v.Version || (key != nil) != (v.Version == 2) ||
					(live != nil) != (v.Version == 1) {
					t.Errorf("kind %d: token %+v, %v", u.Kind, token, ok)
				}
				if key != nil {
					if e, sealed := former.ParseEncrypted(*key); sealed {
						if *key, err = e.Open(keys, v.ID); err != nil {
							t.Error(err)
						}
					}
					raw, ok := former.SessionKey(*key)
					if !ok || former.NewVersion2(v.ID, token.Counter, raw) != v.Token {
						t.Errorf("kind %d: another token", u.Kind)
					}
				} else if *live != v.Token {
					t.Errorf("kind %d: live is %s", u.Kind, *live)
				}
				for _, dead := range v.Dead {
					if _, ok := former.ParseToken(dead); !ok {
						t.Errorf("kind %d: %s is no token", u.Kind, dead)
					}
				}
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
			if e, sealed := former.ParseEncrypted(*hash); sealed {
				if *hash, err = e.Open(keys, u.ID); err != nil {
					t.Error(err)
				}
			}
			if err := password.ValidImport(*hash); err != nil {
				t.Errorf("kind %d: %v", u.Kind, err)
			}
		}
		if len(s.Live()) < 19 || len(s.Private()) < 100 {
			t.Errorf("%d sessions, %d private texts", len(s.Live()), len(s.Private()))
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

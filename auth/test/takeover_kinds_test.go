package test

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Users of every kind do after a takeover what they could do before: sign in, refresh, use their links and factors, or
// stay out.
func TestTakeover_kinds(t *testing.T) {
	t.Parallel()
	s := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Newest, time.Now())
	env := environment(testdb.Postgres(t), "AUTH_TAKEOVER_SOURCE_URL="+s.URL, "AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys)
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	if status, out, errs := command(
		t, env, "", "takeover", "-leave-out", "passwords,saml,web3,webauthn,oauth"); status != 0 {
		t.Fatal(out, errs)
	}
	d := start(t, env)
	status, service, errs := command(t, env, "", "keys", "service")
	if status != 0 {
		t.Fatal(errs)
	}
	service = strings.TrimSpace(service)
	refresh := func(text string) answer {
		t.Helper()
		a, err := call("POST", d.http+"/token?grant_type=refresh_token", "", `{"refresh_token":"`+text+`"}`)
		must.Succeed(t, err)
		return a
	}
	for _, u := range s.Users {
		t.Run(fmt.Sprintf("%d %s", u.Kind, u.Name), func(t *testing.T) {
			want := 200
			if u.Kind == 31 {
				want = 404 // by SAML only
			}
			d.want(t, want, "GET", "/admin/users/"+u.ID.String(), service, "")
			signIn(t, d, u)
			for _, v := range u.Sessions {
				for _, dead := range v.Dead {
					if a := refresh(dead); a.status != 400 || a.str("error_code") != "refresh_token_not_found" &&
						v.Version == 1 {
						t.Errorf("a dead token: %d %s", a.status, a.text)
					}
				}
				a := refresh(v.Token)
				switch {
				case v.Left:
					if a.status != 400 || a.str("error_code") != "refresh_token_not_found" {
						t.Errorf("a session that was left out: %d %s", a.status, a.text)
					}
					continue
				case u.Kind == 25:
					if a.status == 200 {
						t.Errorf("banned: %s", a.text)
					}
					continue
				case a.status != 200:
					t.Errorf("refresh of version %d: %d %s", v.Version, a.status, a.text)
					continue
				}
				carried(t, a, v)
				if again := refresh(v.Token); again.status != 200 ||
					again.str("refresh_token") != a.str("refresh_token") {
					t.Errorf("the former token once more: %d %s", again.status, again.text)
				}
				d.want(t, 200, "GET", "/user", a.str("access_token"), "")
				if next := refresh(a.str("refresh_token")); next.status != 200 {
					t.Errorf("the child: %d %s", next.status, next.text)
				}
			}
			factors(t, d, u)
		})
	}
}

// carried compares an access token with its session there.
func carried(t *testing.T, a answer, v formertest.Session) {
	t.Helper()
	parts := strings.Split(a.str("access_token"), ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		AAL     string `json:"aal"`
		Session string `json:"session_id"`
		AMR     []formertest.AMR
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil {
		t.Fatal(err, a.text)
	}
	if claims.AAL != fmt.Sprintf("aal%d", v.AAL) || claims.Session != v.ID.String() ||
		fmt.Sprint(claims.AMR) != fmt.Sprint(v.AMR) {
		t.Errorf("the token has %+v, want aal%d, %s, %v", claims, v.AAL, v.ID, v.AMR)
	}
}

// signIn signs in by the password, as far as the user could.
func signIn(t *testing.T, d *instance, u *formertest.User) {
	t.Helper()
	if u.Password == "" || u.Kind == 31 {
		return
	}
	body := fmt.Sprintf(`{"email":%q,"password":%q}`, u.Email, u.Password)
	if u.Phone != "" {
		body = fmt.Sprintf(`{"phone":%q,"password":%q}`, u.Phone, u.Password)
	}
	a, err := call("POST", d.http+"/token?grant_type=password", "", body)
	must.Succeed(t, err)
	code := a.str("error_code")
	switch u.Kind {
	case 5, 6, 23: // not before the address is confirmed
		if a.status != 400 || !strings.HasSuffix(code, "_not_confirmed") {
			t.Errorf("unconfirmed: %d %s", a.status, a.text)
		}
	case 18: // the password of an earlier sign-up was never confirmed
		if code != "invalid_credentials" {
			t.Errorf("invited: %d %s", a.status, a.text)
		}
	case 25:
		if code != "user_banned" {
			t.Errorf("banned: %d %s", a.status, a.text)
		}
	default:
		if a.status != 200 {
			t.Errorf("sign in: %d %s", a.status, a.text)
		}
	}
}

// factors proves the authenticators that came, in a session of their user's.
func factors(t *testing.T, d *instance, u *formertest.User) {
	t.Helper()
	for _, f := range u.Factors {
		if f.Type != "totp" || !f.Verified {
			continue
		}
		access := d.want(t, 200, "POST", "/token?grant_type=password", "",
			fmt.Sprintf(`{"email":%q,"password":%q}`, u.Email, u.Password)).str("access_token")
		key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(f.Key)
		must.Succeed(t, err)
		challenge := d.want(t, 200, "POST", "/factors/"+f.ID.String()+"/challenge", access, "").str("id")
		d.want(t, 200, "POST", "/factors/"+f.ID.String()+"/verify", access,
			`{"challenge_id":"`+challenge+`","code":"`+totp.Code(key, totp.Step(time.Now()))+`"}`)
	}
}

// Links in mails that are still good open what they did, and twenty refreshes at once with one former token rotate it
// once.
func TestTakeover_links(t *testing.T) {
	t.Parallel()
	s := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Newest, time.Now())
	env := environment(testdb.Postgres(t), "AUTH_TAKEOVER_SOURCE_URL="+s.URL,
		"AUTH_SECURITY_DB_ENCRYPTION_DECRYPTION_KEYS="+formertest.Keys)
	if status, _, errs := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(errs)
	}
	if status, out, errs := command(
		t, env, "", "takeover", "-leave-out", "passwords,saml,web3,webauthn,oauth"); status != 0 {
		t.Fatal(out, errs)
	}
	d := start(t, env)
	follow := func(kind, n int, as string) url.Values {
		t.Helper()
		var u *formertest.User
		for _, one := range s.Users {
			if one.Kind == kind && len(one.Links) > 0 {
				u = one
				break
			}
		}
		a, err := call("GET", d.http+"/verify?type="+as+"&token="+u.Links[n].Token, "", "")
		if err != nil || a.status != 303 {
			t.Fatalf("kind %d: %v %d %s", kind, err, a.status, a.text)
		}
		to, err := url.Parse(a.location)
		must.Succeed(t, err)
		values, err := url.ParseQuery(to.Fragment)
		must.Succeed(t, err)
		for name, value := range to.Query() {
			values[name] = value
		}
		return values
	}
	for _, f := range []struct {
		kind, n int
		as      string
	}{{5, 0, "signup"}, {7, 0, "magiclink"}, {18, 0, "invite"}, {20, 0, "email_change"}, {22, 0, "recovery"}} {
		if got := follow(f.kind, f.n, f.as); got.Get("access_token") == "" {
			t.Errorf("kind %d: %v", f.kind, got)
		}
		if got := follow(f.kind, f.n, f.as); got.Get("access_token") != "" {
			t.Errorf("kind %d: the link opens twice", f.kind)
		}
	}
	u := s.User(5) // the link has confirmed the sign-up with its password
	d.want(t, 200, "POST", "/token?grant_type=password", "",
		fmt.Sprintf(`{"email":%q,"password":%q}`, u.Email, u.Password))
	code := follow(23, 0, "signup").Get("code")
	d.want(t, 200, "POST", "/token?grant_type=pkce", "",
		fmt.Sprintf(`{"auth_code":%q,"code_verifier":%q}`, code, s.User(23).Links[0].Verifier))

	for _, kind := range []int{1, 39} {
		body := `{"refresh_token":"` + s.User(kind).Sessions[0].Token + `"}`
		children := make([]string, 20)
		await.Together(len(children), func(i int) {
			a, err := call("POST", d.http+"/token?grant_type=refresh_token", "", body)
			if children[i] = a.str("refresh_token"); err != nil || a.status != 200 {
				t.Errorf("kind %d: %v %d %s", kind, err, a.status, a.text)
			}
		})
		for _, child := range children {
			if child != children[0] {
				t.Errorf("kind %d: rotated to %s and %s", kind, children[0], child)
			}
		}
	}
}

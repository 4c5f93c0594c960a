package formertest

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/bcrypt"

	"gatehouse/auth/internal/former"
)

const (
	lower     = "abcdefghijklmnopqrstuvwxyz0123456789"
	base64url = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	base32    = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

	day = 24 * time.Hour
)

// Password hashes that were made by other programs, with their passwords.
const (
	argonHash, argonPassword       = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"
	bcryptBHash, bcryptBPassword   = "$2b$05$XXXXXXXXXXXXXXXXXXXXXOAcXxm9kjPGEMsLznoKqmqw7tc8WCx4a", "U*U*U"
	firebaseHash, firebasePassword = "$fbscrypt$v=1,n=14,r=8,p=1,ss=Bw==,sk=jxspr8Ki0RYycVU8zykbdLGjFQ3McFUH0uiiTvC8pVMXAn210wjLNmdZJzxUECKbm0QsEmYUSDzZvpjeJ9WmXA==$42xEC+ixf3L2lw==$lSrfV15cpx95/sZS2W9c9Kp6i/LVgQNDNC/qzrCnh1SAyZvqmZqAjTdn3aoItz+VHjoZilo78198JAdRuid5lQ==", "user1password"
)

// draft is a user whose row is not inserted yet.
type draft struct {
	*User
	row        row
	identities []row
	after      []func() // insert rows that refer to the user
}

// user inserts a confirmed user with an email address, a password and an identity. change may alter the draft before.
func (w *writer) user(kind int, name string, change func(d *draft)) *User {
	w.t.Helper()
	u := &User{Kind: kind, Name: name, ID: id("user %d %s", kind, name)}
	u.Email = fmt.Sprintf("%s%d@example.org", strings.ReplaceAll(name, " ", "-"), kind)
	created := w.Now.Add(-30 * day)
	d := &draft{User: u, row: row{
		"id": u.ID, "instance_id": uuid.Nil, "aud": "authenticated", "role": "authenticated", "email": u.Email,
		"email_confirmed_at": created, "last_sign_in_at": w.Now.Add(-2 * day),
		"raw_app_meta_data": mustJSON(map[string]any{"provider": "email", "providers": []string{"email"}}),
		"raw_user_meta_data": mustJSON(map[string]any{"sub": u.ID.String(), "email": u.Email, "email_verified": true,
			"nick": name}),
		"created_at": created, "updated_at": w.Now.Add(-2 * day), "confirmation_token": "", "recovery_token": "",
		"email_change_token_new": "", "email_change": "",
	}}
	d.password("password of " + name)
	d.identity("email", u.ID.String(), map[string]any{"sub": u.ID.String(), "email": u.Email, "email_verified": true})
	if change != nil {
		change(d)
	}
	w.insert("users", d.row)
	for i, r := range d.identities {
		r["id"], r["user_id"] = id("identity %d %s %d", kind, name, i), u.ID
		r["created_at"], r["updated_at"], r["last_sign_in_at"] = created, created, w.Now.Add(-2*day)
		w.insert("identities", r)
	}
	for _, f := range d.after {
		f()
	}
	w.Users = append(w.Users, u)
	return u
}

// set sets columns of the user's row.
func (d *draft) set(r row) {
	for column, value := range r {
		d.row[column] = value
	}
}

func (d *draft) password(text string) {
	d.Password, d.row["encrypted_password"] = text, Hash(text)
}

// hashes has the hashes that Hash has made, by password. They are kept since each test fills databases with the same
// users.
var hashes sync.Map

// Hash returns a password hash as the former service makes it, but with the lowest cost.
func Hash(password string) string {
	if hash, ok := hashes.Load(password); ok {
		return hash.(string)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		panic(err)
	}
	made, _ := hashes.LoadOrStore(password, string(hash))
	return made.(string)
}

// hashed sets a password hash that was made by another program.
func (d *draft) hashed(hash, password string) {
	d.Password, d.row["encrypted_password"] = password, hash
}

func (d *draft) identity(provider, providerID string, data map[string]any) {
	d.identities = append(d.identities,
		row{"provider": provider, "provider_id": providerID, "identity_data": mustJSON(data)})
}

// noEmail removes the email address and what depends on it.
func (d *draft) noEmail() {
	d.Email, d.Password, d.identities = "", "", nil
	d.set(row{"email": nil, "email_confirmed_at": nil, "encrypted_password": "", "confirmation_token": nil,
		"raw_user_meta_data": []byte(`{}`)})
}

// phone replaces the email address by a confirmed phone number.
func (d *draft) phone(number string, confirmed time.Time) {
	d.noEmail()
	d.Phone = number
	d.set(row{"phone": number, "phone_confirmed_at": confirmed,
		"raw_app_meta_data": []byte(`{"provider": "phone", "providers": ["phone"]}`)})
	d.identity("phone", d.ID.String(), map[string]any{"sub": d.ID.String(), "phone": number, "phone_verified": true})
}

// external replaces the password by an identity at an external provider.
func (d *draft) external(provider string, data map[string]any) {
	d.Password, d.identities = "", nil
	d.row["encrypted_password"] = ""
	d.row["raw_app_meta_data"] = mustJSON(map[string]any{"provider": provider, "providers": []string{provider}})
	d.identity(provider, "4711-"+provider, data)
}

// sessionDraft is a session whose rows are not inserted yet. The zero value is a session with a token of version 1 and
// the method password.
type sessionDraft struct {
	name     string
	methods  []string // newest first
	aal      int
	factor   uuid.UUID
	length   int // the length of tokens of version 1
	rotated  int // how many revoked tokens of version 1 precede the valid one
	v2       bool
	counter  uint64
	sealed   bool // the key of version 2 is encrypted
	upgraded bool // version 2, with a revoked token of version 1
	row      row
	left     bool
}

// session adds a session to a draft. It is inserted after the user.
func (w *writer) session(d *draft, v sessionDraft) {
	d.after = append(d.after, func() { w.writeSession(d.User, v) })
}

func (w *writer) writeSession(u *User, v sessionDraft) {
	w.t.Helper()
	if v.methods == nil {
		v.methods = []string{"password"}
	}
	if v.aal == 0 {
		v.aal = 1
	}
	if v.length == 0 {
		v.length = 12
	}
	name := fmt.Sprintf("%d %s %s", u.Kind, u.Name, v.name)
	s := Session{ID: id("session %s", name), Version: 1, AAL: v.aal, Factor: v.factor, Left: v.left}
	opened := w.Now.Add(-2 * day)
	refreshed := w.Now.Add(-time.Hour)
	r := row{"id": s.ID, "user_id": u.ID, "created_at": opened, "updated_at": refreshed, "refreshed_at": refreshed,
		"aal": fmt.Sprintf("aal%d", v.aal), "user_agent": "Mozilla/5.0 (X11; Linux x86_64)", "ip": "192.0.2.77"}
	if v.factor != uuid.Nil {
		r["factor_id"] = v.factor
	}
	tokens := func(i int) string {
		alphabet := lower
		if v.length > 12 {
			alphabet = base64url
		}
		return text(alphabet, v.length, fmt.Sprintf("token %s %d", name, i))
	}
	var rows []row
	add := func(i int, revoked bool) string {
		token := tokens(i)
		one := row{"instance_id": uuid.Nil, "token": token, "user_id": u.ID.String(), "revoked": revoked,
			"session_id": s.ID,
			"created_at": opened.Add(time.Duration(i) * time.Hour),
			"updated_at": opened.Add(time.Duration(i+1) * time.Hour)}
		if i > 0 {
			one["parent"] = tokens(i - 1)
		}
		rows = append(rows, one)
		return token
	}
	if v.v2 {
		s.Version = 2
		key := text(base64url, 32, "key "+name)
		encoded := keyText([]byte(key))
		r["refresh_token_hmac_key"], r["refresh_token_counter"] = encoded, int64(v.counter)
		if v.sealed {
			r["refresh_token_hmac_key"] = Encrypt(encoded, s.ID)
		}
		s.Token = former.NewVersion2(s.ID, v.counter, []byte(key))
		if v.counter > 0 {
			s.Dead = append(s.Dead, former.NewVersion2(s.ID, v.counter-1, []byte(key)))
		}
		s.Dead = append(s.Dead, former.NewVersion2(s.ID, v.counter+1, []byte(key)))
		if v.upgraded {
			s.Dead = append(s.Dead, add(0, true), add(1, true))
		}
	} else {
		for i := range v.rotated {
			s.Dead = append(s.Dead, add(i, true))
		}
		s.Token = add(v.rotated, false)
	}
	for column, value := range v.row {
		r[column] = value
	}
	w.insert("sessions", r)
	for _, one := range rows {
		w.insert("refresh_tokens", one)
	}
	for i, method := range v.methods {
		at := opened.Add(-time.Duration(i) * time.Minute)
		s.AMR = append(s.AMR, AMR{method, at.Unix()})
		w.insert("mfa_amr_claims", row{"id": id("amr %s %s", name, method), "session_id": s.ID,
			"created_at": at, "updated_at": at.Add(400 * time.Millisecond), "authentication_method": method})
	}
	u.Sessions = append(u.Sessions, s)
}

// factor adds a second factor to a draft and returns its id. It is inserted after the user.
func (w *writer) factor(d *draft, f Factor, r row) uuid.UUID {
	f.ID = id("factor %d %d", d.Kind, len(d.Factors))
	status, at := "unverified", w.Now.Add(-time.Duration(20-len(d.Factors))*day)
	if f.Verified {
		status = "verified"
	}
	all := row{"id": f.ID, "user_id": d.ID, "friendly_name": f.Name, "factor_type": f.Type, "status": status,
		"created_at": at, "updated_at": at.Add(time.Minute)}
	if f.Name == "" {
		all["friendly_name"] = nil
	}
	if f.Key != "" {
		all["secret"] = f.Key
	}
	if f.Phone != "" {
		all["phone"] = f.Phone
	}
	for column, value := range r {
		all[column] = value
	}
	d.Factors = append(d.Factors, f)
	d.after = append(d.after, func() { w.insert("mfa_factors", all) })
	return f.ID
}

// link adds a mailed link to a draft. typ is the type of its token, and the column of the table users that has the
// token. method is that of the PKCE flow; "" for none.
func (w *writer) link(d *draft, typ, address string, sent time.Time, method string) {
	l := Link{Type: typ, Address: address, Sent: sent,
		Token: LinkToken(address, text("0123456789", 6, fmt.Sprint("code", d.Kind, d.Name, typ)))}
	if method != "" {
		l.Token, l.Verifier = former.PKCEPrefix+l.Token, text(base64url, 32, "verifier "+d.Name)+"-verifier-of-a-flow"
		flow := row{"id": id("flow %d", d.Kind), "user_id": d.ID, "code_challenge_method": "s256",
			"auth_code":      id("code").String(),
			"code_challenge": Challenge(l.Verifier), "provider_type": "email", "authentication_method": method,
			"created_at": sent,
			"updated_at": sent}
		d.after = append(d.after, func() { w.insert("flow_state", flow) })
	}
	d.row[typ] = l.Token
	d.Links = append(d.Links, l)
	token := row{"id": id("link %d %s %s", d.Kind, d.Name, typ), "user_id": d.ID, "token_type": typ,
		"token_hash": l.Token,
		"relates_to": strings.ToLower(address), "created_at": sent, "updated_at": sent}
	d.after = append(d.after, func() { w.insert("one_time_tokens", token) })
}

// kinds inserts at least one user of each kind.
func (w *writer) kinds() {
	now, ago := w.Now, func(d time.Duration) time.Time { return w.Now.Add(-d) }
	late := w.Release == Newest // has what was added after the oldest release

	w.user(1, "ann", func(d *draft) { w.session(d, sessionDraft{}) })
	w.user(2, "two sessions", func(d *draft) {
		w.session(d, sessionDraft{name: "a"})
		w.session(d, sessionDraft{name: "b", length: 22, methods: []string{"otp"}})
	})
	w.user(3, "rotated", func(d *draft) { w.session(d, sessionDraft{rotated: 2}) })
	w.user(4, "signed out", nil)
	pending := func(d *draft, sent time.Time) {
		d.set(row{"email_confirmed_at": nil, "confirmation_sent_at": sent, "last_sign_in_at": nil})
		d.row["raw_user_meta_data"] = mustJSON(map[string]any{"sub": d.ID.String(), "email": d.Email,
			"email_verified": false,
			"phone_verified": false, "nick": d.Name})
	}
	w.user(5, "pending", func(d *draft) {
		pending(d, ago(time.Hour))
		w.link(d, "confirmation_token", d.Email, ago(time.Hour), "")
	})
	w.user(5, "pending long", func(d *draft) {
		pending(d, ago(3*day))
		w.link(d, "confirmation_token", d.Email, ago(3*day), "")
	})
	w.user(5, "pending phone", func(d *draft) {
		password, hash := d.Password, d.row["encrypted_password"]
		d.phone("15550100005", now)
		d.Password = password
		d.set(row{"encrypted_password": hash, "phone_confirmed_at": nil, "confirmation_sent_at": ago(time.Hour),
			"last_sign_in_at": nil,
			"raw_user_meta_data": mustJSON(map[string]any{"sub": d.ID.String(), "phone": d.Phone,
				"phone_verified": false, "nick": d.Name})})
		w.link(d, "confirmation_token", d.Phone, ago(time.Hour), "")
	})
	w.user(6, "made by admin", func(d *draft) { d.set(row{"email_confirmed_at": nil, "last_sign_in_at": nil}) })
	w.user(7, "magic link", func(d *draft) {
		d.row["recovery_sent_at"] = ago(10 * time.Minute)
		w.link(d, "recovery_token", d.Email, ago(10*time.Minute), "")
	})
	w.user(8, "phone", func(d *draft) {
		d.phone("15550100008", ago(30*day))
		w.session(d, sessionDraft{methods: []string{"otp"}})
	})
	w.user(9, "phone password", func(d *draft) {
		d.phone("15550100009", ago(30*day))
		d.password("password of a phone")
	})
	w.user(10, "anonymous", func(d *draft) {
		d.noEmail()
		old := ago(40 * day)
		d.set(row{"is_anonymous": true, "raw_app_meta_data": []byte(`{}`), "created_at": old, "updated_at": old,
			"last_sign_in_at": old})
		w.session(d, sessionDraft{methods: []string{"anonymous"},
			row: row{"created_at": old, "updated_at": old, "refreshed_at": old}})
	})
	w.user(11, "permanent", func(d *draft) { w.session(d, sessionDraft{methods: []string{"anonymous"}}) })
	w.user(12, "totp", func(d *draft) {
		f := w.factor(d, Factor{Type: "totp", Name: "phone", Verified: true, Key: text(base32, 32, "totp 12")}, nil)
		w.factor(d, Factor{Type: "totp", Name: "half", Key: text(base32, 32, "totp 12 b")}, nil)
		w.session(d, sessionDraft{methods: []string{"totp", "password"}, aal: 2, factor: f})
	})
	if late {
		w.user(13, "phone factor", func(d *draft) {
			f := w.factor(d, Factor{Type: "phone", Name: "mobile", Verified: true, Phone: "15550100013"},
				row{"last_challenged_at": ago(2 * day)})
			w.session(d, sessionDraft{methods: []string{"mfa/phone", "password"}, aal: 2, factor: f})
		})
	}
	w.user(14, "nameless", func(d *draft) {
		w.factor(d, Factor{Type: "totp", Verified: true, Key: text(base32, 32, "totp 14")}, nil)
		key := text(base32, 32, "totp 14 b")
		w.factor(d, Factor{Type: "totp", Verified: true, Key: key}, row{"secret": strings.ToLower(key)})
	})
	w.user(15, "argon", func(d *draft) { d.hashed(argonHash, argonPassword) })
	w.user(16, "bcrypt b", func(d *draft) { d.hashed(bcryptBHash, bcryptBPassword) })
	w.user(17, "firebase", func(d *draft) { d.hashed(firebaseHash, firebasePassword) })
	w.user(18, "invited", func(d *draft) {
		d.set(row{"email_confirmed_at": nil, "invited_at": ago(time.Hour), "confirmation_sent_at": ago(time.Hour),
			"last_sign_in_at": nil})
		w.link(d, "confirmation_token", d.Email, ago(time.Hour), "")
	})
	w.user(19, "change", func(d *draft) {
		d.set(row{"email_change": "Change.New19@example.org", "email_change_sent_at": ago(5 * time.Minute)})
		w.link(d, "email_change_token_current", d.Email, ago(5*time.Minute), "")
		w.link(d, "email_change_token_new", "change.new19@example.org", ago(5*time.Minute), "")
	})
	w.user(20, "half change", func(d *draft) {
		d.set(row{"email_change": "half.new20@example.org", "email_change_sent_at": ago(5 * time.Minute),
			"email_change_confirm_status": 1})
		w.link(d, "email_change_token_new", "half.new20@example.org", ago(5*time.Minute), "")
	})
	w.user(21, "phone change", func(d *draft) {
		d.set(row{"phone_change": "15550100021", "phone_change_sent_at": ago(time.Minute)})
		w.link(d, "phone_change_token", "15550100021", ago(time.Minute), "")
	})
	w.user(22, "recovery", func(d *draft) {
		d.row["recovery_sent_at"] = ago(20 * time.Minute)
		w.link(d, "recovery_token", d.Email, ago(20*time.Minute), "")
		w.session(d, sessionDraft{})
	})
	w.user(23, "pkce", func(d *draft) {
		pending(d, ago(time.Hour))
		w.link(d, "confirmation_token", d.Email, ago(time.Hour), "email/signup")
	})
	w.user(24, "reauthentication", func(d *draft) {
		d.row["reauthentication_sent_at"] = ago(time.Minute)
		w.link(d, "reauthentication_token", d.Email, ago(time.Minute), "")
		w.session(d, sessionDraft{})
	})
	w.user(25, "banned", func(d *draft) {
		d.row["banned_until"] = now.Add(day)
		w.session(d, sessionDraft{})
	})
	w.user(26, "deleted", func(d *draft) {
		d.Email, d.Password, d.identities = "", "", nil
		d.set(row{"email": Challenge(d.ID.String()), "encrypted_password": "", "deleted_at": ago(day), "phone": "",
			"raw_user_meta_data": []byte(`{}`), "raw_app_meta_data": []byte(`{}`)})
	})
	w.user(27, "editor", func(d *draft) {
		d.set(row{"role": "editor",
			"raw_user_meta_data": []byte(`{"nick": "ed", "deep": {"list": [1, 2, {"x": null}], "é": "ü"}}`),
			"raw_app_meta_data": []byte(
				`{"provider": "email", "providers": ["email"], "claims": {"team": {"id": 7}}}`)})
		w.session(d, sessionDraft{})
	})
	w.user(28, "github", func(d *draft) {
		d.external("github", map[string]any{"sub": "4711-github", "email": d.Email, "email_verified": true,
			"user_name": "hub"})
		w.session(d, sessionDraft{methods: []string{"oauth"}})
	})
	w.user(29, "facebook", func(d *draft) {
		d.external("facebook", map[string]any{"sub": "4711-facebook", "email": d.Email, "name": "fb"})
		pending(d, ago(time.Hour))
		w.link(d, "confirmation_token", d.Email, ago(time.Hour), "")
	})
	w.user(30, "linkedin", func(d *draft) {
		d.external("linkedin_oidc", map[string]any{"sub": "4711-linkedin_oidc", "email": d.Email,
			"email_verified": true})
	})
	w.user(31, "saml", func(d *draft) {
		d.Email = "ann1@example.org"
		provider := "sso:" + id("sso provider").String()
		d.external(provider, map[string]any{"sub": "ann", "email": d.Email})
		d.set(row{"email": d.Email, "is_sso_user": true})
		w.session(d, sessionDraft{methods: []string{"sso/saml"}, left: true})
	})
	w.user(32, "wallet", func(d *draft) {
		d.noEmail()
		d.external("web3", map[string]any{"sub": "web3:ethereum:0x00", "address": "0x00"})
		w.session(d, sessionDraft{methods: []string{"web3"}})
	})
	w.user(33, "mixed", func(d *draft) { d.row["email"] = "Mixed33@Example.ORG" })
	w.user(34, "plus", func(d *draft) {
		d.phone("15550100034", ago(30*day))
		d.password("password of plus")
		d.row["phone"] = "+15550100034"
	})
	w.user(35, "nulls", func(d *draft) {
		d.set(row{"aud": nil, "role": nil, "created_at": nil, "updated_at": nil, "raw_app_meta_data": nil,
			"raw_user_meta_data": nil})
		w.session(d, sessionDraft{})
	})
	w.user(36, "encrypted", func(d *draft) {
		d.row["encrypted_password"] = Encrypt(d.row["encrypted_password"].(string), d.ID)
	})
	w.user(37, "encrypted keys", func(d *draft) {
		key := text(base32, 32, "totp 37")
		f := w.factor(d, Factor{Type: "totp", Name: "app", Verified: true, Key: key}, nil)
		d.after = append(d.after, func() {
			sql := fmt.Sprintf("update %s.mfa_factors set secret = $1 where id = $2", w.Schema)
			if _, err := w.tx.Exec(w.t.Context(), sql, Encrypt(key, f), f); err != nil {
				w.t.Fatal(err)
			}
		})
		w.session(d, sessionDraft{methods: []string{"totp", "password"}, aal: 2, factor: f, v2: late, sealed: late,
			counter: 3})
	})
	if late {
		w.user(38, "version 2", func(d *draft) { w.session(d, sessionDraft{v2: true}) })
		w.user(39, "counter 300", func(d *draft) { w.session(d, sessionDraft{v2: true, counter: 300}) })
		w.user(40, "upgraded", func(d *draft) { w.session(d, sessionDraft{v2: true, counter: 2, upgraded: true}) })
	}
	w.user(41, "over", func(d *draft) {
		w.session(d, sessionDraft{left: true, row: row{"not_after": ago(time.Minute)}})
	})
	if late {
		client := id("client")
		w.insert("oauth_clients", row{"id": client, "client_name": "app"})
		w.user(42, "client", func(d *draft) {
			w.session(d, sessionDraft{left: true, row: row{"oauth_client_id": client, "scopes": "openid"}})
		})
	}
	w.user(43, "security key", func(d *draft) {
		credential := row{}
		if late { // the oldest release lacks the column
			credential["web_authn_credential"] = SecurityKey([]byte("the key of kind 43"), PublicKey())
		}
		f := w.factor(d, Factor{Type: "webauthn", Name: "key", Verified: true}, credential)
		w.session(d, sessionDraft{methods: []string{"mfa/webauthn", "password"}, aal: 2, factor: f})
	})
	w.user(44, "array", func(d *draft) { d.row["raw_user_meta_data"] = []byte(`["a", "b"]`) })
	w.user(45, "super", func(d *draft) {
		d.row["is_super_admin"] = true
		w.session(d, sessionDraft{})
	})
	w.user(46, "odd password", func(d *draft) {
		d.hashed("$md5$salt$0123456789abcdef", "")
		w.session(d, sessionDraft{})
	})
	w.user(47, "never refreshed", func(d *draft) {
		w.session(d, sessionDraft{row: row{"refreshed_at": nil}})
	})
}

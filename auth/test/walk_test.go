package test

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/await"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/testdb"
)

// walk lets a few people do whatever an account knows, in random order, on two replicas of which one is killed now and
// then. It keeps what each account has to be, and compares after each step.
type walk struct {
	*testing.T
	chance   *rand.Rand
	url      string
	env      []string
	daemons  [2]*instance
	client   *caller
	mails    *sentMails
	seen     map[string]int // mails with a link that were taken, by address
	idp      *fakeidp.Server
	admin    string
	people   []*walker
	links    []*link
	calls, n int
	log      []string
}

// walker is an account as it has to be.
type walker struct {
	id                string
	email, phone      string
	confirmed         bool // the e-mail address is
	phoneConfirmed    bool
	anonymous, banned bool
	password          string // "": none
	google            bool
	factor            string // a verified one
	key               []byte // of the factor
	step              int64  // of the code that was used last
	sessions          []*walkSession
}

type walkSession struct {
	access, refresh, former string
	aal2                    bool
	ended                   string // error code of GET /user; empty: it lives
}

// link is one that a mail has brought.
type link struct {
	owner       *walker
	kind, token string
	to          string // the address that it proves
	password    string // of the sign-up
	dead        bool
}

const walkFor = 20 * time.Second

// TestWalk prints its seed; WALK_SEED repeats a walk, and WALK_CALLS=20000 makes a long one.
func TestWalk(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WALK_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	calls, _ := strconv.Atoi(os.Getenv("WALK_CALLS"))
	smtp := smtptest.Start(t, smtptest.Options{})
	w := &walk{T: t, chance: rand.New(rand.NewPCG(seed, 1)), url: testdb.Postgres(t), client: newCaller(t, time.Minute),
		mails: newSentMails(smtp), seen: map[string]int{}, idp: startIDP(t)}
	w.env = append(append(environment(w.url, onSMTP(smtp)...), providersAt(w.idp, backHere)...),
		"AUTH_MAILER_SECURE_EMAIL_CHANGE_ENABLED=false", "AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_SMS_MAX_FREQUENCY=0",
		"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_RATE_LIMIT_PASSWORD_PER_ACCOUNT=0",
		"AUTH_SMS_TEST_OTP="+testNumbers(), "AUTH_RATE_LIMIT_CODES_PER_ACCOUNT=0", "AUTH_RATE_LIMIT_SMS_PER_NUMBER=0", "AUTH_RATE_LIMIT_SMS_SENT=1000000", "AUTH_RATE_LIMIT_EMAIL_SENT=1000000",
		"AUTH_SECURITY_MANUAL_LINKING_ENABLED=true", "AUTH_RATE_LIMIT_REFRESH_PER_SESSION=0")
	w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for i := range w.daemons {
		w.daemons[i] = start(t, w.env)
	}
	status, out, errs := command(t, w.env, "", "keys", "service", "-exp", "1h")
	if status != 0 {
		t.Fatal(errs)
	}
	w.admin = strings.TrimSpace(out)
	t.Cleanup(func() {
		t.Logf("WALK_SEED=%d: %d calls", seed, w.calls)
		if t.Failed() {
			t.Log("the last steps:\n" + strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
		}
	})
	for end := time.Now().Add(walkFor); !t.Failed() && (w.calls < calls || calls == 0 && time.Now().Before(end)); {
		w.step()
	}
	w.checkInvariants()
}

// checkInvariants reads the whole database once more.
func (w *walk) checkInvariants() {
	conn, err := pgx.Connect(w.Context(), w.url)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close(w.Context())
	broken, err := storetest.Violations(w.Context(), conn, "")
	if err != nil || len(broken) > 0 {
		w.Errorf("%v %q", err, broken)
	}
}

// testNumbers are the numbers of the walk, each with its fixed code.
func testNumbers() string {
	var all []string
	for i := range 4 {
		all = append(all, fmt.Sprintf("1555000111%d:123456", i))
	}
	return strings.Join(all, ",")
}

// ask sends a request to one of the replicas, and fails the walk when the status is another.
func (w *walk) ask(status int, method, path, bearer, body string) reply {
	w.Helper()
	return w.askAt(w.chance.IntN(2), status, method, path, bearer, body)
}

func (w *walk) askAt(replica, status int, method, path, bearer, body string) reply {
	w.Helper()
	w.calls++
	r, err := w.client.do(method, w.daemons[replica].http+path, bearer, body)
	if len(body) > 150 {
		body = body[:150]
	}
	text := r.text
	if len(text) > 200 {
		text = text[:200]
	}
	w.log = append(w.log, fmt.Sprintf("%s %s %s: %d %v %s", method, path, body, r.status, err, text))
	if err != nil || r.status != status {
		w.Fatalf("%s %s %s: %d %v %s; want %d", method, path, body, r.status, err, r.text, status)
	}
	return r
}

// refused is ask for an answer with an error code.
func (w *walk) refused(code string, status int, method, path, bearer, body string) {
	w.Helper()
	if r := w.ask(status, method, path, bearer, body); r.str("error_code") != code {
		w.Fatalf("%s %s: %s; want %s", method, path, r.text, code)
	}
}

func (w *walk) pick() *walker {
	if len(w.people) == 0 {
		return nil
	}
	return w.people[w.chance.IntN(len(w.people))]
}

// live is a person who is not banned, with a session that lives.
func (w *walk) live() (*walker, *walkSession) {
	for range 10 {
		if p := w.pick(); p != nil && !p.banned {
			for _, i := range w.chance.Perm(len(p.sessions)) {
				if s := p.sessions[i]; s.ended == "" {
					return p, s
				}
			}
		}
	}
	return nil, nil
}

func (w *walk) address() string { return fmt.Sprintf("w%d@example.org", w.chance.IntN(8)) }
func (w *walk) number() string  { return fmt.Sprintf("1555000111%d", w.chance.IntN(4)) }
func (w *walk) password() string {
	return fmt.Sprintf("correct horse %d", w.chance.IntN(3))
}

func (w *walk) owner(email string) *walker {
	i := slices.IndexFunc(w.people, func(p *walker) bool { return p.email == email })
	if i < 0 {
		return nil
	}
	return w.people[i]
}

func (w *walk) add(p *walker) *walker {
	w.people = append(w.people, p)
	return p
}

// mail takes the next mail with a link to an address.
func (w *walk) mail(l link) *link {
	w.Helper()
	await.True(w, "a mail to "+l.to, func() bool {
		var tokens []string
		for _, m := range w.mails.to(w, l.to) {
			if m.token != "" && !slices.Contains(tokens, m.token) { // a killed sender's mail comes twice
				tokens = append(tokens, m.token)
			}
		}
		if len(tokens) <= w.seen[l.to] {
			return false
		}
		l.token = tokens[w.seen[l.to]]
		w.seen[l.to]++
		return true
	})
	return w.keep(l)
}

// keep notes a link, which takes the place of the older one of its kind; of sign-ups, five live next to each other.
func (w *walk) keep(l link) *link {
	w.links = append(w.links, &l)
	var living []*link
	for _, o := range w.links {
		if o.owner == l.owner && o.kind == l.kind && !o.dead {
			living = append(living, o)
		}
	}
	most := map[bool]int{true: 5, false: 1}[l.kind == "signup"]
	for _, o := range living[:max(0, len(living)-most)] {
		o.dead = true
	}
	return &l
}

// begin notes a session that an answer has opened.
func (w *walk) begin(p *walker, r reply, aal2 bool) *walkSession {
	w.Helper()
	s := &walkSession{access: r.str("access_token"), refresh: r.str("refresh_token"), aal2: aal2}
	if s.access == "" || s.refresh == "" {
		w.Fatalf("no session: %s", r.text)
	}
	user, _ := r.body["user"].(map[string]any)
	if id, _ := user["id"].(string); p.id == "" {
		p.id = id
	} else if p.id != id {
		w.Fatalf("a session of %s, want %s", id, p.id)
	}
	p.sessions = append(p.sessions, s)
	return s
}

// end ends the sessions of a person but one.
func (p *walker) end(code string, but *walkSession) {
	for _, s := range p.sessions {
		if s != but && (s.ended == "" || s.ended == "tokens") {
			s.ended = code
		}
	}
}

// void makes the links of a person worthless.
func (w *walk) void(p *walker) {
	for _, l := range w.links {
		l.dead = l.dead || l.owner == p
	}
}

const gone = "session_not_found"

// step is one random step, and what has to be seen of an account afterwards.
func (w *walk) step() {
	steps := []func(){w.signUp, w.signUp, w.redeem, w.redeem, w.redeem, w.signIn, w.signIn, w.requestLink, w.requestLink,
		w.refresh, w.refresh, w.logout, w.setPassword, w.changeEmail, w.administer, w.administer, w.anonymous, w.give,
		w.factor, w.native, w.phone, w.exchange, w.ban, w.erase}
	steps[w.chance.IntN(len(steps))]()
	if w.chance.IntN(200) == 0 {
		w.kill()
	}
	if p := w.pick(); p != nil {
		w.check(p)
	}
}

// check compares an account, and its sessions, with what they have to be.
func (w *walk) check(p *walker) {
	w.Helper()
	u := w.ask(200, "GET", "/admin/users/"+p.id, w.admin, "").body
	set := func(name string) bool { return u[name] != nil && u[name] != "" }
	factors, _ := u["factors"].([]any)
	verified := slices.ContainsFunc(factors, func(f any) bool { return f.(map[string]any)["status"] == "verified" })
	got := fmt.Sprint(u["email"], set("email_confirmed_at"), u["phone"], set("phone_confirmed_at"), u["is_anonymous"],
		set("banned_until"), verified)
	want := fmt.Sprint(p.email, p.confirmed, p.phone, p.phoneConfirmed, p.anonymous, p.banned, p.factor != "")
	if got != want {
		w.Fatalf("user %s is %s, want %s", p.id, got, want)
	}
	if len(p.sessions) == 0 {
		return
	}
	s := p.sessions[w.chance.IntN(len(p.sessions))]
	switch {
	case p.banned && (s.ended == "" || s.ended == "tokens"):
		w.refused("user_banned", 403, "GET", "/user", s.access, "")
	case s.ended == "" || s.ended == "tokens":
		if r := w.ask(200, "GET", "/user", s.access, ""); r.str("id") != p.id {
			w.Fatalf("GET /user shows %s, want %s", r.str("id"), p.id)
		}
	default:
		w.refused(s.ended, 403, "GET", "/user", s.access, "")
		code := map[bool]string{true: "user_banned", false: "refresh_token_not_found"}[p.banned]
		w.refused(code, 400, "POST", refreshPath, "", refreshing(s.refresh))
	}
}

func (w *walk) signUp() {
	email, password := w.address(), w.password()
	p := w.owner(email)
	w.ask(200, "POST", "/signup", "", credentials(email, password))
	if p != nil && p.confirmed {
		return // nobody can tell
	}
	if p == nil {
		p = w.add(&walker{email: email})
		p.id = w.idOf(email)
	}
	w.mail(link{owner: p, kind: "signup", to: email, password: password})
}

func (w *walk) idOf(email string) string {
	return rows[string](w, w.url, `select id::text from users where email = $1 and deleted_at is null`, email)[0]
}

// redeem uses a link, of those that are good or of those that are not any more.
func (w *walk) redeem() {
	if len(w.links) == 0 {
		return
	}
	i := len(w.links) - 1 - w.chance.IntN(min(8, len(w.links)))
	l := w.links[i]
	body := fmt.Sprintf(`{"type":%q,"token":%q}`, l.kind, l.token)
	p := l.owner
	switch {
	case l.dead || !slices.Contains(w.people, p):
		w.refused("otp_expired", 403, "POST", "/verify", "", body)
		return
	case p.banned:
		w.refused("user_banned", 403, "POST", "/verify", "", body)
		return
	}
	if o := w.owner(l.to); l.kind == "email_change" && o != nil && o != p {
		if o.confirmed {
			w.refused("email_exists", 422, "POST", "/verify", "", body)
			w.forget(l)
			return
		}
		w.displace(o)
	}
	r := w.ask(200, "POST", "/verify", "", body)
	w.void(p)
	if l.kind == "email_change" {
		if p.email != "" { // a first address ends nothing
			p.end(gone, nil)
		}
		p.email = l.to
	}
	if l.kind == "signup" && l.password != "" {
		p.password = l.password
	}
	p.confirmed, p.anonymous = true, false
	w.begin(p, r, false)
	w.check(p)
}

// displace takes an address that another has proven from an account that has not.
func (w *walk) displace(p *walker) {
	w.void(p)
	p.email = ""
	if p.phone == "" && !p.anonymous {
		w.remove(p)
	}
}

// forget makes nothing certain of a link any more.
func (w *walk) forget(l *link) {
	w.links = slices.DeleteFunc(w.links, func(o *link) bool { return o == l })
}

func (w *walk) signIn() {
	p := w.pick()
	if p == nil || p.email == "" {
		return
	}
	password := w.password()
	body := credentials(p.email, password)
	const path = "/token?grant_type=password"
	var newest *link
	for _, l := range w.links {
		if l.owner == p && l.kind == "signup" && l.password != "" && !l.dead {
			newest = l
		}
	}
	right := p.password == password
	if !p.confirmed && newest != nil {
		if p.password != "" {
			return // of two hashes, which one decides is another test's
		}
		right = newest.password == password
	}
	switch {
	case !right:
		w.refused("invalid_credentials", 400, "POST", path, "", body)
	case p.banned:
		w.refused("user_banned", 400, "POST", path, "", body)
	case !p.confirmed:
		w.refused("email_not_confirmed", 400, "POST", path, "", body)
	default:
		w.begin(p, w.ask(200, "POST", path, "", body), false)
	}
}

// requestLink asks for a magic link or a recovery.
func (w *walk) requestLink() {
	email := w.address()
	p := w.owner(email)
	if w.chance.IntN(2) == 0 {
		w.ask(200, "POST", "/recover", "", `{"email":"`+email+`"}`)
		if p != nil {
			w.mail(link{owner: p, kind: "recovery", to: email})
		}
		return
	}
	w.ask(200, "POST", "/otp", "", `{"email":"`+email+`"}`)
	if p == nil {
		p = w.add(&walker{email: email})
		p.id = w.idOf(email)
	}
	kind := "magiclink"
	if !p.confirmed {
		kind = "signup"
	}
	w.mail(link{owner: p, kind: kind, to: email})
}

func (w *walk) refresh() {
	p, s := w.live()
	if p == nil {
		return
	}
	if s.former != "" && w.chance.IntN(6) == 0 { // two rotations ago
		w.refused("refresh_token_already_used", 400, "POST", refreshPath, "", refreshing(s.former))
		s.ended = gone
		w.check(p)
		return
	}
	for range 1 + w.chance.IntN(2) {
		r := w.ask(200, "POST", refreshPath, "", refreshing(s.refresh))
		if s.refresh != r.str("refresh_token") && s.former == "" {
			s.former = s.refresh
			r = w.ask(200, "POST", refreshPath, "", refreshing(r.str("refresh_token")))
		}
		s.refresh, s.access = r.str("refresh_token"), r.str("access_token")
		_, claims := tokenParts(w.T, s.access)
		aal := map[bool]string{true: "aal2", false: "aal1"}[s.aal2]
		if claims["is_anonymous"] != p.anonymous || claims["aal"] != aal || claims["email"] != p.email {
			w.Fatalf("claims %v of %+v", claims, p)
		}
	}
}

func (w *walk) logout() {
	p, s := w.live()
	if p == nil {
		return
	}
	scope := []string{"local", "global", "others", ""}[w.chance.IntN(4)]
	path := "/logout"
	if scope != "" {
		path += "?scope=" + scope
	}
	w.ask(204, "POST", path, s.access, "")
	switch scope {
	case "local":
		s.ended = gone
	case "global":
		p.end(gone, nil)
	case "others":
		p.end(gone, s)
	default:
		for _, each := range p.sessions {
			if each.ended == "" {
				each.ended = "tokens"
			}
		}
	}
}

func (w *walk) setPassword() {
	p, s := w.live()
	if p == nil {
		return
	}
	password := w.password()
	body := `{"password":"` + password + `"}`
	switch {
	case p.anonymous:
		return // a rule of its own
	case p.factor != "" && !s.aal2:
		w.refused("insufficient_aal", 401, "PUT", "/user", s.access, body)
	case p.password == password:
		w.refused("same_password", 422, "PUT", "/user", s.access, body)
	default:
		w.ask(200, "PUT", "/user", s.access, body)
		p.password = password
		p.end(gone, s)
		w.void(p)
	}
}

func (w *walk) changeEmail() {
	p, s := w.live()
	if p == nil || p.factor != "" && !s.aal2 {
		return
	}
	email := w.address()
	body := `{"email":"` + email + `"}`
	if o := w.owner(email); o != nil && o != p {
		if o.confirmed {
			w.refused("email_exists", 422, "PUT", "/user", s.access, body)
			return
		}
	}
	if email == p.email {
		return
	}
	w.ask(200, "PUT", "/user", s.access, body)
	w.mail(link{owner: p, kind: "email_change", to: email})
}

// administer creates an account, or confirms one.
func (w *walk) administer() {
	email := w.address()
	p := w.owner(email)
	switch {
	case p == nil && w.chance.IntN(2) == 0:
		password := w.password()
		r := w.ask(200, "POST", "/admin/users", w.admin,
			fmt.Sprintf(`{"email":%q,"password":%q,"email_confirm":true}`, email, password))
		w.add(&walker{id: r.str("id"), email: email, confirmed: true, password: password})
	case p == nil:
		r := w.ask(200, "POST", "/admin/users", w.admin, fmt.Sprintf(`{"email":%q}`, email))
		w.add(&walker{id: r.str("id"), email: email})
	case w.chance.IntN(2) == 0 && !p.banned: // a link without a mail
		r := w.ask(200, "POST", "/admin/generate_link", w.admin, fmt.Sprintf(`{"type":"magiclink","email":%q}`, email))
		l := link{owner: p, kind: r.str("verification_type"), to: email, token: r.str("hashed_token")}
		w.keep(l)
	}
}

// anonymous signs somebody up without an address.
func (w *walk) anonymous() {
	if len(w.people) > 20 {
		return
	}
	p := w.add(&walker{anonymous: true})
	w.begin(p, w.ask(200, "POST", "/signup", "", "{}"), false)
}

// give gives an anonymous user an address by an administrator, which nobody has proven.
func (w *walk) give() {
	email := w.address()
	i := slices.IndexFunc(w.people, func(p *walker) bool { return p.anonymous && p.email == "" })
	if i < 0 || w.owner(email) != nil {
		return
	}
	p := w.people[i]
	w.ask(200, "PUT", "/admin/users/"+p.id, w.admin, fmt.Sprintf(`{"email":%q}`, email))
	p.email = email
	w.void(p)
	w.check(p)
}

// factor enrolls an authenticator app, answers a challenge of it, or removes it.
func (w *walk) factor() {
	p, s := w.live()
	switch {
	case p == nil || p.anonymous:
	case p.factor == "":
		r := w.ask(200, "POST", "/factors", s.access, fmt.Sprintf(`{"factor_type":"totp","friendly_name":"f%d"}`, w.calls))
		secret, _ := r.body["totp"].(map[string]any)["secret"].(string)
		key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(secret)
		if err != nil {
			w.Fatal(err)
		}
		p.key, p.step = key, 0
		w.verifyFactor(p, s, r.str("id"))
	case s.aal2 && w.chance.IntN(2) == 0:
		w.ask(200, "DELETE", "/factors/"+p.factor, s.access, "")
		p.factor = ""
		for _, each := range p.sessions {
			each.aal2 = false
		}
		w.check(p)
	case !s.aal2 && totp.Step(time.Now()) > p.step:
		w.verifyFactor(p, s, p.factor)
	}
}

func (w *walk) verifyFactor(p *walker, s *walkSession, factor string) {
	challenge := w.ask(200, "POST", "/factors/"+factor+"/challenge", s.access, "").str("id")
	step := totp.Step(time.Now())
	r := w.ask(200, "POST", "/factors/"+factor+"/verify", s.access,
		fmt.Sprintf(`{"challenge_id":%q,"code":%q}`, challenge, totp.Code(p.key, step)))
	p.factor, p.step = factor, step
	s.access, s.refresh, s.former, s.aal2 = r.str("access_token"), r.str("refresh_token"), "", true
	for _, each := range p.sessions {
		if !each.aal2 && (each.ended == "" || each.ended == "tokens") {
			each.ended = gone
		}
	}
	w.check(p)
}

// native signs somebody in by a provider that has verified the address.
func (w *walk) native() {
	email := w.address()
	p := w.owner(email)
	if p != nil && p.banned {
		return
	}
	w.n++
	token := w.idp.IDToken("google", fakeidp.User{ID: "g-" + email, Email: email, Verified: true, Name: "Some One"},
		map[string]any{"jti": strconv.Itoa(w.n)})
	for _, o := range w.people {
		if o != p && o.google { // whose address was another when it signed in so
			return
		}
	}
	r := w.ask(200, "POST", "/token?grant_type=id_token", "", fmt.Sprintf(`{"provider":"google","id_token":%q}`, token))
	switch {
	case p == nil:
		p = w.add(&walker{email: email})
	case !p.confirmed: // what strangers have prepared ends
		p.end(gone, nil)
		p.password, p.factor = "", ""
		p.phone, p.phoneConfirmed = "", false
		w.void(p)
	}
	p.confirmed, p.anonymous, p.google = true, false, true
	w.begin(p, r, false)
	w.check(p)
	w.ask(200, "DELETE", "/admin/users/"+p.id, w.admin, "{}") // the same subject may come with another account's address
	w.remove(p)
}

// phone signs somebody in by a number.
func (w *walk) phone() {
	number := w.number()
	i := slices.IndexFunc(w.people, func(p *walker) bool { return p.phone == number })
	if i >= 0 && w.people[i].banned {
		return
	}
	w.ask(200, "POST", "/otp", "", `{"phone":"`+number+`"}`)
	r := w.ask(200, "POST", "/verify", "", `{"type":"sms","phone":"`+number+`","token":"123456"}`)
	var p *walker
	if i < 0 {
		p = w.add(&walker{phone: number})
	} else {
		p = w.people[i]
	}
	p.phoneConfirmed, p.anonymous = true, false
	w.void(p)
	w.begin(p, r, false)
	w.check(p)
}

// exchange redeems a code at the moment at which its user signs out everywhere: no session survives.
func (w *walk) exchange() {
	p, s := w.live()
	if p == nil || !p.confirmed {
		return
	}
	verifier := strings.Repeat("v", 43) + strconv.Itoa(w.calls)
	sum := sha256.Sum256([]byte(verifier))
	w.ask(200, "POST", "/otp", "", fmt.Sprintf(`{"email":%q,"code_challenge":%q,"code_challenge_method":"s256"}`, p.email,
		base64.RawURLEncoding.EncodeToString(sum[:])))
	l := w.mail(link{owner: p, kind: "magiclink", to: p.email})
	r := w.ask(303, "GET", "/verify?type=magiclink&token="+url.QueryEscape(l.token), "", "")
	w.void(p)
	at, err := url.Parse(r.header.Get("Location"))
	if err != nil || at.Query().Get("code") == "" {
		w.Fatalf("no code: %v %s", err, r.header.Get("Location"))
	}
	body, _ := json.Marshal(map[string]string{"auth_code": at.Query().Get("code"), "code_verifier": verifier})
	var both sync.WaitGroup
	both.Go(func() {
		if w.chance.IntN(2) == 0 {
			time.Sleep(time.Duration(w.chance.IntN(2000)) * time.Microsecond)
		}
		r, err = w.client.do("POST", w.daemons[0].http+"/token?grant_type=pkce", "", string(body))
	})
	out, outErr := w.client.do("POST", w.daemons[1].http+"/logout?scope=global", s.access, "")
	both.Wait()
	w.calls += 2
	w.log = append(w.log, fmt.Sprintf("exchange %d %s, sign-out %d %s of %s", r.status, r.str("error_code"), out.status,
		out.text, p.id))
	if err != nil || outErr != nil || out.status != 204 {
		w.Fatalf("sign-out: %d %v, exchange: %v", out.status, outErr, err)
	}
	p.end(gone, nil)
	if r.status == 200 {
		w.begin(p, r, false)
		p.end(gone, nil)
	}
	none(w, w.url, "sessions survive signing out everywhere",
		`select id::text from sessions where user_id = $1::text::uuid and ended_at is null`, p.id)
	w.check(p)
}

func (w *walk) ban() {
	p := w.pick()
	if p == nil || !p.banned && w.chance.IntN(2) == 0 {
		return
	}
	p.banned = !p.banned
	w.ask(200, "PUT", "/admin/users/"+p.id, w.admin,
		map[bool]string{true: `{"ban_duration":"24h"}`, false: `{"ban_duration":"none"}`}[p.banned])
	w.check(p)
}

func (w *walk) erase() {
	if p := w.pick(); p != nil && len(w.people) > 6 {
		w.ask(200, "DELETE", "/admin/users/"+p.id, w.admin,
			map[bool]string{true: `{"should_soft_delete":true}`, false: `{}`}[w.chance.IntN(2) == 0])
		w.remove(p)
	}
}

func (w *walk) remove(p *walker) {
	w.people = slices.DeleteFunc(w.people, func(o *walker) bool { return o == p })
	w.void(p)
}

// kill ends a replica without a warning, and starts another in its place.
func (w *walk) kill() {
	i := w.chance.IntN(2)
	w.log = append(w.log, "kill -9")
	if err := w.daemons[i].Signal(syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	<-w.daemons[i].Ended()
	w.daemons[i] = start(w, w.env)
}

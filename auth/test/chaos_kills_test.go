package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// storm is two daemons and their database, struck again and again while people use them.
type storm struct {
	t   *testing.T
	pg  *localserver.Server
	url string
	env []string
	// daemons are the striker's alone; the others know where they are at the moment.
	daemons [2]*instance
	at      [2]atomic.Pointer[string]
	turn    atomic.Int64

	client *caller
	mails  *sentMails

	done  atomic.Int64 // answers that say something
	mu    sync.Mutex
	count map[string]int // answers by request and status
	all   []*person
}

// person is a user that signs up, and what the daemon has acknowledged to it.
type person struct {
	email     string
	passwords []string // what the password may be: more than one after a change whose answer was lost
	signUps   int      // acknowledged
	recovers  int
	confirmed bool
	access    string
	tokens    []string // acknowledged refresh tokens of the present session, oldest first
	ended     []string // last refresh tokens of sessions that were signed out
}

// say counts an answer; one of our own making is never a 500.
func (s *storm) say(what string, r reply, err error) {
	status := fmt.Sprint(r.status)
	if err != nil {
		status = "lost"
	}
	s.mu.Lock()
	s.count[what+" "+status]++
	s.mu.Unlock()
	if err == nil && (r.status == 500 || r.status == 409) {
		s.t.Errorf("%s: %d %s", what, r.status, r.text)
	}
}

// ask sends a request until it gets an answer other than "try again", or the storm is over: ok is false then. lost
// says that an earlier try may have been carried out.
func (s *storm) ask(ctx context.Context, what, method, path, bearer, body string) (r reply, lost, ok bool) {
	for ctx.Err() == nil {
		r, err := s.client.do(method, *s.at[s.turn.Add(1)%2].Load()+path, bearer, body)
		s.say(what, r, err)
		switch {
		case err != nil, r.status == 504:
			lost = true
		case r.status == 503:
			lost = true // the commit may have come through though its answer did not
			if r.header.Get("Retry-After") == "" {
				s.t.Errorf("%s: 503 without Retry-After: %s", what, r.text)
			}
		default:
			s.done.Add(1)
			return r, lost, true
		}
		time.Sleep(25 * time.Millisecond)
	}
	return r, lost, false
}

func (s *storm) wrong(p *person, what string, r reply) {
	s.t.Errorf("%s of %s: %d %s", what, p.email, r.status, r.text)
}

// live is one person's life after the other, until the storm is over.
func (s *storm) live(ctx context.Context, worker int, chance *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		p := &person{email: fmt.Sprintf("p%d-%d@example.org", worker, n), passwords: []string{"correct horse"}}
		s.mu.Lock()
		s.all = append(s.all, p)
		s.mu.Unlock()
		if !s.join(ctx, p) {
			continue
		}
		for range 5 + chance.IntN(20) {
			if ctx.Err() != nil || !s.act(ctx, p, chance) {
				break
			}
		}
	}
}

// join signs up and verifies. A person that gets no mail soon leaves; the mail comes in the end.
func (s *storm) join(ctx context.Context, p *person) bool {
	r, _, ok := s.ask(ctx, "signup", "POST", "/signup", "", `{"email":"`+p.email+`","password":"correct horse"}`)
	if !ok {
		return false
	}
	if r.status != 200 {
		s.wrong(p, "sign-up", r)
		return false
	}
	p.signUps++
	var token string
	for end := time.Now().Add(2 * time.Second); token == ""; time.Sleep(20 * time.Millisecond) {
		if mails := s.mails.to(s.t, p.email); len(mails) > 0 {
			token = mails[len(mails)-1].token
		} else if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
	r, lost, ok := s.ask(ctx, "verify", "POST", "/verify", "", `{"type":"signup","token_hash":"`+token+`"}`)
	switch {
	case !ok:
		return false
	case r.status == 200:
		p.confirmed = true
		p.begin(r)
		return true
	case lost && r.status == 403: // the answer to the first try was lost, not what it did
		p.confirmed = true
		return s.signIn(ctx, p)
	}
	s.wrong(p, "verification", r)
	return false
}

func (p *person) begin(r reply) {
	p.access, p.tokens = r.str("access_token"), []string{r.str("refresh_token")}
}

func (s *storm) signIn(ctx context.Context, p *person) bool {
	p.access, p.tokens = "", nil
	for i := len(p.passwords) - 1; i >= 0; i-- {
		r, _, ok := s.ask(ctx, "password", "POST", "/token?grant_type=password", "",
			`{"email":"`+p.email+`","password":"`+p.passwords[i]+`"}`)
		if !ok {
			return false
		}
		if r.status == 200 {
			p.passwords = p.passwords[i : i+1]
			p.begin(r)
			return true
		}
		if r.status != 400 || i == 0 {
			s.wrong(p, "sign-in", r)
		}
	}
	return false
}

// act is one thing that a person does; false: it has left.
func (s *storm) act(ctx context.Context, p *person, chance *rand.Rand) bool {
	switch n := chance.IntN(20); {
	case n < 9:
		return s.refresh(ctx, p, 1)
	case n < 12:
		return s.refresh(ctx, p, 3)
	case n < 15:
		fresh := fmt.Sprintf("battery staple %d", chance.Uint64())
		p.passwords = append(p.passwords, fresh)
		r, _, ok := s.ask(ctx, "change", "PUT", "/user", p.access, `{"password":"`+fresh+`"}`)
		if ok && r.status == 422 && r.str("error_code") == "same_password" { // the first try's answer was lost
			r.status = 200
		}
		if ok && r.status != 200 {
			s.wrong(p, "change of password", r)
		}
		if ok && r.status == 200 {
			p.passwords = []string{fresh}
		}
		return ok
	case n < 17:
		r, _, ok := s.ask(ctx, "recover", "POST", "/recover", "", `{"email":"`+p.email+`"}`)
		if ok && r.status != 200 {
			s.wrong(p, "recovery", r)
		} else if ok {
			p.recovers++
		}
		return ok
	case n < 19:
		r, _, ok := s.ask(ctx, "logout", "POST", "/logout?scope=local", p.access, "")
		if !ok {
			p.tokens = nil // whether the session exists is unknown
			return false
		}
		if r.status != 204 {
			s.wrong(p, "sign-out", r)
		}
		p.ended = append(p.ended, p.tokens[len(p.tokens)-1])
		return s.signIn(ctx, p)
	default:
		if r, _, ok := s.ask(ctx, "user", "GET", "/user", p.access, ""); ok && r.status != 200 {
			s.wrong(p, "look", r)
		}
		return true
	}
}

// refresh rotates the token, by so many clients at once; all get the same child.
func (s *storm) refresh(ctx context.Context, p *person, clients int) bool {
	children := make([]reply, clients)
	var gaveUp atomic.Bool
	await.Together(clients, func(i int) {
		r, _, ok := s.ask(ctx, "refresh", "POST", refreshPath, "", refreshing(p.tokens[len(p.tokens)-1]))
		switch {
		case !ok:
			gaveUp.Store(true)
		case r.status != 200:
			s.wrong(p, "refresh", r)
			gaveUp.Store(true)
		}
		children[i] = r
	})
	if gaveUp.Load() {
		return false
	}
	for _, r := range children[1:] {
		if r.str("refresh_token") != children[0].str("refresh_token") {
			s.t.Errorf("%s: two children of one refresh token", p.email)
		}
	}
	p.access, p.tokens = children[0].str("access_token"), append(p.tokens, children[0].str("refresh_token"))
	return true
}

// startDaemons starts these again and waits until they serve.
func (s *storm) startDaemons(which ...int) {
	for _, i := range which {
		s.daemons[i] = launch(s.t, s.t.TempDir(), s.env)
	}
	for _, i := range which {
		s.daemons[i].awaitReady(s.t)
		s.at[i].Store(&s.daemons[i].http)
	}
}

func (s *storm) stopDaemons() {
	for _, d := range s.daemons {
		if err := d.Stop(20 * time.Second); err != nil {
			s.t.Errorf("stopping: %v", err)
		}
	}
}

// strike does one bad thing to a daemon, the database or all, and mends it.
func (s *storm) strike(chance *rand.Rand) (what []string) {
	t := s.t
	moment := func() { time.Sleep(time.Duration(chance.IntN(150)) * time.Millisecond) }
	i := chance.IntN(len(s.daemons))
	d := s.daemons[i]
	killDaemon := func(d *instance) {
		must.Succeed(t, d.Signal(syscall.SIGKILL))
		<-d.Ended()
	}
	switch n := chance.IntN(20); {
	case n < 3:
		killDaemon(d)
		moment()
		s.startDaemons(i)
		return []string{"daemon killed"}
	case n < 9:
		s.pg.Kill()
		moment()
		must.Succeed(t, s.pg.Restart(t.Context()))
		return []string{"database killed"}
	case n < 13: // a machine with all of them
		s.pg.Kill()
		for _, d := range s.daemons {
			killDaemon(d)
		}
		must.Succeed(t, s.pg.Restart(t.Context()))
		s.startDaemons(0, 1)
		return []string{"database killed", "daemon killed", "daemon killed"}
	case n < 14:
		must.Succeed(t, s.pg.Stop())
		moment()
		killDaemon(d)
		must.Succeed(t, s.pg.Cont())
		s.startDaemons(i)
		return []string{"daemon killed"}
	case n < 16:
		must.Succeed(t, d.Signal(syscall.SIGSTOP))
		s.pg.Kill()
		must.Succeed(t, s.pg.Restart(t.Context()))
		must.Succeed(t, d.Signal(syscall.SIGCONT))
		return []string{"database killed"}
	case n < 18:
		must.Succeed(t, d.Signal(syscall.SIGSTOP))
		moment()
		must.Succeed(t, d.Signal(syscall.SIGCONT))
		return []string{"daemon frozen"}
	case n < 19:
		must.Succeed(t, s.pg.Stop())
		moment()
		if chance.IntN(4) == 0 {
			time.Sleep(2500 * time.Millisecond) // longer than a request may take
		}
		must.Succeed(t, s.pg.Cont())
		return []string{"database frozen"}
	default:
		must.Succeed(t, d.Stop(20*time.Second))
		s.startDaemons(i)
		return []string{"daemon restarted"}
	}
}

// Daemons and database are killed, frozen and restarted at random moments while people sign up, verify,
// refresh, change passwords and sign out. Whatever was acknowledged holds afterwards, and nothing is
// half done.
func TestKills_underLoad(t *testing.T) {
	t.Parallel()
	chance := chaos.Rand(t)
	pg, smtp := testdb.PrivatePostgres(t, localserver.PostgresOptions{}), smtptest.Start(t, smtptest.Options{})
	s := &storm{t: t, pg: pg, url: pg.PostgresURL("postgres"), client: newCaller(t, 10*time.Second),
		mails: newSentMails(smtp), count: map[string]int{}}
	s.env = append(environment(s.url, onSMTP(smtp)...), "AUTH_RATE_LIMIT_EMAIL_SENT=1000000",
		"AUTH_API_MAX_REQUEST_DURATION=2s",
		"AUTH_RATE_LIMIT_REFRESH_PER_SESSION=0", "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=1h",
		"AUTH_DB_MAX_POOL_SIZE=8")
	s.startDaemons(0, 1)

	ctx, over := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 6 {
		own := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
		wg.Go(func() { s.live(ctx, i, own) })
	}
	defer wg.Wait()
	defer over()
	var worked, mending time.Duration
	strikes, end := map[string]int{}, time.Now().Add(chaos.Time(t, 0))
	for strikes["daemon killed"] < 20 || strikes["database killed"] < 20 || time.Now().Before(end) {
		// The blow falls while work is under way: at a random one of the next answers.
		until := s.done.Load() + int64(1+chance.IntN(30))
		begun := time.Now()
		await.True(t, "work goes on", func() bool { return s.done.Load() >= until })
		worked += time.Since(begun)
		begun = time.Now()
		for _, what := range s.strike(chance) {
			strikes[what]++
		}
		mending += time.Since(begun)
		if t.Failed() {
			break
		}
	}
	over()
	wg.Wait()
	t.Logf("%v took %v, with %v of work between; answers: %v", strikes, mending, worked, s.count)

	// The leases of the killed run out: to the database a minute has passed.
	s.stopDaemons()
	rows[int](t, s.url, `update outbox set due_at = now() where state = 'pending' returning 1`)
	s.startDaemons(0, 1)
	await.True(t, "nothing is pending", func() bool {
		return rows[int](t, s.url, `select count(*) from outbox where state = 'pending'`)[0] == 0
	})
	s.checkUsers()
	s.checkMails(smtp)
	s.checkSessions()
}

// checkUsers: no user is half made, and each has the state that was acknowledged.
func (s *storm) checkUsers() {
	t := s.t
	none(t, s.url, "users without identity",
		`select email from users u where not exists (select from identities where user_id = u.id)`)
	none(t, s.url, "identities without user",
		`select email from identities i where not exists (select from users where id = i.user_id)`)
	none(t, s.url, "addresses of two users", `select email from users group by email having count(*) > 1`)
	none(t, s.url, "identities at odds with their user", `select u.email from users u join identities i on i.user_id = u.id
		where i.email <> u.email or i.provider_id <> u.id::text or (i.identity_data->>'email_verified')::boolean <> (u.email_confirmed_at is not null)`)
	none(t, s.url, "unconfirmed users without a pending sign-up",
		`select email from users u where email_confirmed_at is null
		and not exists (select from one_time_tokens where user_id = u.id and kind = 'signup')`)
	none(t, s.url, "unconfirmed users with password or session",
		`select email from users u where email_confirmed_at is null
		and (password_hash <> '' or exists (select from sessions where user_id = u.id))`)
	none(t, s.url, "confirmed users without password",
		`select email from users where email_confirmed_at is not null and password_hash = ''`)
	none(t, s.url, "confirmed users with a sign-up left", `select email from users u where email_confirmed_at is not null
		and exists (select from one_time_tokens where user_id = u.id and kind = 'signup')`)
	none(t, s.url, "sessions without an audit row",
		`select s.id::text from sessions s where not exists (select from audit where session_id = s.id)`)
	none(t, s.url, "ended sessions without reason",
		`select id::text from sessions where (ended_at is not null) <> (ended_reason <> '')`)
	confirmed := map[string]bool{}
	for _, email := range rows[string](t, s.url, `select email from users where email_confirmed_at is not null`) {
		confirmed[email] = true
	}
	for _, p := range s.all {
		if p.confirmed && !confirmed[p.email] {
			t.Errorf("%s was verified and is not confirmed", p.email)
		}
	}
}

// checkMails: each acknowledged mail has its row, each row was delivered, and what came twice is one mail.
func (s *storm) checkMails(smtp *smtptest.Server) {
	t := s.t
	none(t, s.url, "messages that were not sent",
		`select id::text || ' ' || kind || ' ' || state || ' ' || error from outbox
		where state <> 'sent' and error <> 'no longer wanted'`)
	ordered := map[string]int{}
	for _, key := range rows[string](t, s.url,
		`select u.email || ' ' || o.kind from outbox o join users u on u.id = o.user_id`) {
		ordered[key]++
	}
	for _, p := range s.all {
		if n := ordered[p.email+" confirmation"]; n < p.signUps {
			t.Errorf("%s: %d sign-ups acknowledged, %d mails ordered", p.email, p.signUps, n)
		}
		if n := ordered[p.email+" recovery"]; n < p.recovers {
			t.Errorf("%s: %d recoveries acknowledged, %d mails ordered", p.email, p.recovers, n)
		}
	}
	arrived, texts := map[string]int{}, map[string]string{}
	for _, m := range smtp.Mails() {
		id, _, _ := strings.Cut(strings.Trim(m.Message(t).Header.Get("Message-ID"), "<>"), "@")
		arrived[id]++
		token := string(tokenInLink.Find(m.Raw)) // the boundaries differ each time
		if texts[id] == "" {
			texts[id] = m.To + token
		}
		if texts[id] != m.To+token {
			t.Errorf("two mails with the Message-ID %s: %s, %s", id, texts[id], m.To+token)
		}
	}
	sent := rows[string](t, s.url, `select id::text from outbox where state = 'sent'`)
	twice := 0
	for _, id := range sent {
		if arrived[id] == 0 {
			t.Errorf("message %s is sent and never arrived", id)
		}
		if arrived[id] > 1 {
			twice++
		}
	}
	known := map[string]bool{}
	for _, id := range rows[string](t, s.url, `select id::text from outbox`) {
		known[id] = true
	}
	for id := range arrived {
		if !known[id] {
			t.Errorf("mail %s was sent and is not in the outbox", id)
		}
	}
	t.Logf("%d mails sent, %d of them more than once", len(sent), twice)
}

// checkSessions: the newest token acknowledged still works, in one line of descent only.
func (s *storm) checkSessions() {
	live, reused, ended, calls := 0, 0, 0, 0
	refresh := func(token string) reply {
		calls++
		r, err := s.client.do("POST", s.daemons[calls%2].http+refreshPath, "", refreshing(token))
		if err != nil {
			s.t.Error(err)
		}
		return r
	}
	for _, p := range s.all {
		for _, token := range p.ended {
			ended++
			if r := refresh(token); r.status != 400 {
				s.t.Errorf("%s: a token of a session that he has signed out of: %d %s", p.email, r.status, r.text)
			}
		}
		if len(p.tokens) == 0 {
			continue
		}
		live++
		last := p.tokens[len(p.tokens)-1]
		head, again := refresh(last), refresh(last)
		if head.status != 200 || again.status != 200 || head.str("refresh_token") != again.str("refresh_token") {
			s.t.Errorf("%s: the newest token gives %d %s and %d %s", p.email, head.status, head.text, again.status,
				again.text)
			continue
		}
		if len(p.tokens) == 1 {
			continue
		}
		reused++
		if r := refresh(p.tokens[len(p.tokens)-2]); r.status != 400 ||
			r.str("error_code") != "refresh_token_already_used" {
			s.t.Errorf("%s: an older token gives %d %s", p.email, r.status, r.text)
		}
		if r := refresh(head.str("refresh_token")); r.status != 400 {
			s.t.Errorf("%s: the session lives on after an older token: %d %s", p.email, r.status, r.text)
		}
	}
	if n := rows[int](s.t, s.url, `select count(*) from sessions where ended_reason like '%reuse%'`)[0]; n != reused {
		s.t.Errorf("%d sessions ended by reuse, want %d", n, reused)
	}
	s.t.Logf("%d people, %d live sessions, %d of them refreshed, %d signed out", len(s.all), live, reused, ended)
}

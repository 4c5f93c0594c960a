package test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
	"gatehouse/shared/upgradetest"
)

// Two replicas of the former release are replaced by today's, one by one under load, and these by the former again, on
// one database: no request fails, and sessions, tokens and codes of either are good at the other.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	previous := upgradetest.Previous(t)
	smtp := smtptest.Start(t, smtptest.Options{})
	u := &upgrade{t: t, mails: newSentMails(smtp)}
	u.env = append(environment(testdb.Postgres(t), "AUTH_DRAIN_DELAY=300ms",
		"AUTH_RATE_LIMIT_EMAIL_SENT=1000000"), onSMTP(smtp)...)
	start := func(old bool) {
		program := os.Args[0]
		if old {
			program = filepath.Join(previous, "auth")
		}
		d := launchProgram(t, program, t.TempDir(), u.env, "serve")
		d.awaitReady(t)
		u.fleet.Add(d)
	}
	start(true)
	start(true)
	u.fleet.Run(t, upgradetest.Phase(t), u.live, func(old bool) {
		start(old)
		d := u.fleet.RemoveFirst()
		if err := d.Stop(30 * time.Second); err != nil { // one SIGTERM: a second would end the drain
			t.Errorf("a replaced replica: %v", err)
		}
	})
	for _, access := range u.kept { // of every state
		for range 2 {
			u.ask(200, "GET", "/user", access, "")
		}
	}

	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	upgradetest.Settings(t, read(filepath.Join(previous, "auth-settings.md")), read("../docs/settings.md"),
		read("../CHANGELOG.md"))
}

type upgrade struct {
	t     *testing.T
	env   []string
	mails *sentMails
	fleet upgradetest.Fleet[*instance]

	mu   sync.Mutex
	kept []string // access tokens whose sessions go on
}

// ask sends a request to the next replica.
func (u *upgrade) ask(status int, method, path, bearer, body string) answer {
	d := u.fleet.Pick()
	a, err := call(method, d.http+path, bearer, body)
	if err != nil || a.status != status {
		u.t.Errorf("%s %s: %v, %d %s; want %d", method, path, err, a.status, a.text, status)
	}
	return a
}

// live is what a user does: sign up, confirm by mail, use the session, sign out, sign in again.
func (u *upgrade) live(i int) {
	email := fmt.Sprintf("user%d@example.org", i)
	u.ask(200, "POST", "/signup", "", credentials(email, horse))
	await.True(u.t, "the mail", func() bool { return len(u.mails.to(u.t, email)) > 0 || u.t.Failed() })
	if u.t.Failed() {
		return
	}
	s := u.ask(200, "POST", "/verify", "", `{"type":"signup","token_hash":"`+u.mails.to(u.t, email)[0].token+`"}`)
	for range 3 {
		u.ask(200, "GET", "/user", s.str("access_token"), "")
		s = u.ask(200, "POST", refreshPath, "", refreshing(s.str("refresh_token")))
	}
	u.ask(204, "POST", "/logout?scope=local", s.str("access_token"), "")
	s = u.ask(200, "POST", "/token?grant_type=password", "", credentials(email, horse))
	u.mu.Lock()
	u.kept = append(u.kept, s.str("access_token"))
	u.mu.Unlock()
}

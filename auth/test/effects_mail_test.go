package test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// inboxHTML are the bodies of the mails to an address in the dev mailbox, newest first.
func (d *instance) inboxHTML(t *testing.T, to string) (all []string) {
	t.Helper()
	a, err := call("GET", d.mailbox+"/messages?to="+url.QueryEscape(to), "", "")
	var list []struct{ HTML string }
	if err != nil || json.Unmarshal([]byte(a.text), &list) != nil {
		t.Fatalf("the mails to %s: %v %s", to, err, a.text)
	}
	for _, m := range list {
		all = append(all, m.HTML)
	}
	return all
}

// bodyServer has templates that count how often each was fetched. Its first answer for /RECOVERY is an error; /INVITE
// is long.
type bodyServer struct {
	*httptest.Server
	mu    sync.Mutex
	asked map[string]int
}

func startBodies(t *testing.T) *bodyServer {
	s := &bodyServer{asked: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked[r.URL.Path]++
		n := s.asked[r.URL.Path]
		s.mu.Unlock()
		if r.URL.Path == "/RECOVERY" && n == 1 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "<p>own body "+strconv.Itoa(n)+".</p>")
		if r.URL.Path == "/INVITE" {
			io.WriteString(w, strings.Repeat(" ", 5000))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *bodyServer) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// How long a template of a mail is fresh, how large it may be, when it is tried again, and whether it is
// loaded while no mail needs it. The daemon that loads by itself is the others' clock: when it has loaded
// three times, the same time has passed for all.
func TestEffects_templates(t *testing.T) {
	t.Parallel()
	const builtIn = 0
	type tested struct {
		*tuned
		bodies *bodyServer
	}
	begin := func(settings ...string) (d tested) {
		t.Helper()
		d.bodies = startBodies(t)
		for _, kind := range strings.Fields("CONFIRMATION RECOVERY INVITE") {
			settings = append(settings, "AUTH_MAILER_TEMPLATES_"+kind+"="+d.bodies.URL+"/"+kind)
		}
		d.tuned = startTuned(t, settings...)
		return d
	}
	// mailed requests a mail and wants the n-th loaded body in it; builtIn: none of the server's.
	mailed := func(d tested, n int, path, bearer, to string) {
		t.Helper()
		before := len(d.inboxHTML(t, to))
		body := `{"email":"` + to + `"}`
		if path == "/signup" {
			body = credentials(to, horse)
		}
		d.want(t, 200, "POST", path, bearer, body)
		var all []string
		await.True(t, "the mail of "+path, func() bool { all = d.inboxHTML(t, to); return len(all) > before })
		own := "own body " + strconv.Itoa(n) + "."
		if n == builtIn && strings.Contains(all[0], "own body") || n != builtIn && !strings.Contains(all[0], own) {
			t.Errorf("%s: %s; want %d", path, all[0], n)
		}
	}

	loads := begin("AUTH_MAILER_TEMPLATE_RELOADING_ENABLED=true", "AUTH_MAILER_TEMPLATE_MAX_AGE=1s")
	idle := begin("AUTH_MAILER_TEMPLATE_RELOADING_ENABLED=true", "AUTH_MAILER_TEMPLATE_MAX_AGE=1s",
		"AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE=1s")
	short := begin("AUTH_MAILER_TEMPLATE_MAX_AGE=1s", "AUTH_MAILER_TEMPLATE_RETRY_INTERVAL=1s",
		"AUTH_MAILER_TEMPLATE_MAX_SIZE=4000")
	long := begin("AUTH_MAILER_TEMPLATE_RETRY_INTERVAL=1h")
	// What is not fresh is loaded for the idle one only in the second after a mail, in which it is fresh.
	for _, d := range []tested{idle, short, long} {
		mailed(d, 1, "/signup", "", "ann@example.org")
	}
	for _, d := range []tested{short, long} {
		_, code := d.mail(t, "ann@example.org")
		d.want(t, 200, "POST", "/verify", "", `{"type":"signup","email":"ann@example.org","token":"`+code+`"}`)
		mailed(d, builtIn, "/recover", "", "ann@example.org")
	}
	mailed(short, builtIn, "/invite", short.admin(t, "service_role"), "guest@example.org")
	mailed(long, 1, "/invite", long.admin(t, "service_role"), "guest@example.org")

	mailed(loads, 1, "/signup", "", "ann@example.org")
	await.True(t, "the template is loaded again and again", func() bool {
		return loads.bodies.count("/CONFIRMATION") >= 3
	})
	for name, d := range map[string]tested{"idle": idle, "short": short, "long": long} {
		if n := d.bodies.count("/CONFIRMATION"); n != 1 {
			t.Errorf("%s: loaded %d times", name, n)
		}
	}
	mailed(idle, 2, "/signup", "", "bob@example.org")
	mailed(short, 2, "/signup", "", "bob@example.org")
	mailed(long, 1, "/signup", "", "bob@example.org")
	mailed(short, 2, "/recover", "", "ann@example.org")
	mailed(long, builtIn, "/recover", "", "ann@example.org")
}

// How the daemon speaks to the mail server, and with which account.
func TestEffects_smtp(t *testing.T) {
	t.Parallel()
	smtp := smtptest.Start(t, smtptest.Options{StartTLS: true, Mechanisms: []string{"SCRAM-SHA-256"}, User: "post",
		Pass: "stamps"})
	dir, database := t.TempDir(), testdb.Postgres(t)
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, []byte(smtp.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	writeSettings(t, dir, "AUTH_SMTP_ADMIN_EMAIL=auth@example.org", "AUTH_SMTP_TLS=none")
	d := &tuned{database: database,
		instance: launch(t, dir, environment(database, "SSL_CERT_FILE="+roots, "AUTH_DEV_MAILBOX=false",
			"AUTH_SMTP_HOST="+smtp.Host(), "AUTH_SMTP_PORT="+strconv.Itoa(smtp.Port())))}
	d.awaitReady(t)
	next := func() smtptest.Mail {
		t.Helper()
		before := len(smtp.Mails())
		d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse))
		await.True(t, "the mail", func() bool { return len(smtp.Mails()) > before })
		return smtp.Mails()[before]
	}
	m := next()
	h := m.Message(t).Header
	if m.From != "auth@example.org" || h.Get("From") != `"auth@example.org" <auth@example.org>` ||
		h.Get("X-Kind") != "" || m.User != "" || m.Encrypted {
		t.Errorf("from %s, user %q, encrypted %t, headers %v", m.From, m.User, m.Encrypted, h)
	}
	full := []string{"AUTH_SMTP_ADMIN_EMAIL=house@example.org", "AUTH_SMTP_SENDER_NAME=The House",
		"AUTH_SMTP_TLS=required", `AUTH_SMTP_HEADERS='{"X-Kind":["a mail of $messageType"]}'`, "AUTH_SMTP_USER=post"}
	d.with(t, append(full, "AUTH_SMTP_PASS=stamps")...)
	m = next()
	h = m.Message(t).Header
	if m.From != "house@example.org" || h.Get("From") != `"The House" <house@example.org>` ||
		!strings.HasPrefix(h.Get("X-Kind"), "a mail of ") || m.User != "post" || !m.Encrypted {
		t.Errorf("from %s, user %q, encrypted %t, headers %v", m.From, m.User, m.Encrypted, h)
	}
	d.with(t, append(full, "AUTH_SMTP_PASS=other")...)
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse))
	await.True(t, "the sign-in at the mail server fails", func() bool {
		return rows[int](t, database, `select count(*)::int from outbox where error like '%AUTH: 535%'`)[0] == 1
	})
}

// A mail that stays due makes the daemon unready from some age on.
func TestEffects_outboxAge(t *testing.T) {
	t.Parallel()
	d := startTuned(t)
	// No process can take a mail to send it: no row of the outbox can be changed.
	execSQL(t, d.database, `create function unchanged() returns trigger language plpgsql as 'begin return null; end'`,
		`create trigger unchanged before update on outbox for each row execute function unchanged()`)
	d.want(t, 200, "POST", "/signup", "", credentials(d.unusedAddress(), horse))
	for _, c := range []struct {
		setting string
		status  int
	}{{"AUTH_READY_OUTBOX_AGE=1s", 503}, {"AUTH_READY_OUTBOX_AGE=0", 200}, {"AUTH_READY_OUTBOX_AGE=1s", 503},
		{"AUTH_READY_OUTBOX_AGE=10m", 200}} {
		d.with(t, c.setting)
		await.True(t, c.setting, func() bool {
			a, err := call("GET", d.http+"/readyz", "", "")
			return err == nil && a.status == c.status && (a.status == 200 || strings.Contains(a.text, "outbox"))
		})
	}
}

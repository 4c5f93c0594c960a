package test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
)

// caller keeps connections open, as a busy client does: call opens one for each request.
type caller struct{ http.Client }

func newCaller(t testing.TB, timeout time.Duration) *caller {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &caller{http.Client{Timeout: timeout, Transport: transport}}
}

// reply is an answer with its headers.
type reply struct {
	answer
	header http.Header
}

// do sends a request, with further headers, "name: value" each. An error means that it is not known whether it
// was carried out.
func (c *caller) do(method, url, bearer, body string, headers ...string) (reply, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	r.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	resp, err := c.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a := reply{answer{status: resp.StatusCode, text: string(b)}, resp.Header}
	json.Unmarshal(b, &a.body) // not all bodies are objects
	return a, err
}

func refreshing(token string) string { return `{"refresh_token":"` + token + `"}` }

const refreshPath = "/token?grant_type=refresh_token"

// onSMTP has the daemon send its mails to a server of the test, which outlives it.
func onSMTP(s *smtptest.Server) []string {
	return []string{"AUTH_DEV_MAILBOX=false", "AUTH_SMTP_HOST=" + s.Host(), "AUTH_SMTP_PORT=" + strconv.Itoa(s.Port()),
		"AUTH_SMTP_ADMIN_EMAIL=auth@example.org"}
}

// sentMails sorts by recipient what an SMTP server of a test has accepted.
type sentMails struct {
	server *smtptest.Server

	mu   sync.Mutex
	read int
	byTo map[string][]chaosMail
}

// chaosMail is one of them. token is the link's.
type chaosMail struct{ id, token, subject string }

var tokenInLink = regexp.MustCompile(`/verify\?token=([^&\s]+)`)

func newSentMails(s *smtptest.Server) *sentMails {
	return &sentMails{server: s, byTo: map[string][]chaosMail{}}
}

// to is what an address has got so far, oldest first.
func (l *sentMails) to(t testing.TB, address string) []chaosMail {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.server.Mails()
	for _, m := range all[l.read:] {
		message := m.Message(t)
		one := chaosMail{id: message.Header.Get("Message-ID"), subject: message.Header.Get("Subject")}
		_, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
		if err != nil {
			t.Error(err)
			continue
		}
		part, err := multipart.NewReader(message.Body, params["boundary"]).NextPart() // the plain text
		if err != nil {
			t.Error(err)
			continue
		}
		text, _ := io.ReadAll(part)
		if found := tokenInLink.FindSubmatch(text); found != nil {
			one.token = string(found[1])
		}
		to := strings.Trim(m.To, "<>")
		l.byTo[to] = append(l.byTo[to], one)
	}
	l.read = len(all)
	return l.byTo[address]
}

// rows queries the database itself, and waits while it is unreachable.
func rows[T any](t testing.TB, url, sql string, args ...any) []T {
	t.Helper()
	var list []T
	var err error
	await.True(t, sql, func() bool {
		list, err = rowsOnce[T](url, sql, args...)
		return err == nil
	}, func() string { return err.Error() })
	return list
}

func rowsOnce[T any](url, sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	r, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, pgx.RowTo[T])
}

// none fails for each row that sql finds: its first column says which.
func none(t testing.TB, url, what, sql string, args ...any) {
	t.Helper()
	if bad := rows[string](t, url, sql, args...); len(bad) > 0 {
		t.Errorf("%s: %d, such as %s", what, len(bad), bad[0])
	}
}

// headerOf is the header of a signed token, as JSON.
func headerOf(t testing.TB, token string) string {
	t.Helper()
	header, _, _ := strings.Cut(token, ".")
	b, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		t.Fatalf("token %q: %v", token, err)
	}
	return string(b)
}

// execute runs a statement.
func execute(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

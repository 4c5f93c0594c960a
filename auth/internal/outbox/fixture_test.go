package outbox_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		child() // until it is killed
	}
	goleak.VerifyTestMain(m, testdb.IgnoreServers())
}

var (
	noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	root = secret.NewRoot("the root key of the tests")
)

// lease is the outbox's: a message that is due in just that time is being sent.
const lease = time.Minute

// clock is a time that a test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) Now() time.Time          { return noon.Add(time.Duration(c.at.Load())) }
func (c *clock) Advance(d time.Duration) { c.at.Add(int64(d)) }

// order puts a message into the outbox that may be sent for an hour.
func order(t testing.TB, db *store.DB, now time.Time, channel string, payload any) uuid.UUID {
	t.Helper()
	text, err := json.Marshal(payload)
	must.Succeed(t, err)
	id := uuid.New()
	return orderSealed(t, db, now, channel, id, root.Seal(secret.Outbox, text, id[:]))
}

func orderSealed(t testing.TB, db *store.DB, now time.Time, channel string, id uuid.UUID, sealed []byte) uuid.UUID {
	t.Helper()
	b := db.Batch()
	b.InsertMessage(store.NewMessage{ID: id, Channel: channel, Kind: "magic_link", Payload: sealed, At: now,
		ExpiresAt: now.Add(time.Hour)})
	must.Succeed(t, b.Send(context.Background()))
	return id
}

func aMail(to string) mail.Payload {
	return mail.Payload{To: to, Kind: mail.MagicLink, Vars: mail.Vars{
		SiteURL: "https://app.acme.test", Email: to, Token: "123456",
		ConfirmationURL: "https://auth.acme.test/verify?token=abc",
	}}
}

// smtpSender is the daemon's sender of mails, to the test's server.
func smtpSender(t testing.TB, s *smtptest.Server, timeout time.Duration) outbox.Sender {
	t.Helper()
	out, err := mail.NewSMTP(mail.SMTPOptions{
		SMTPSettings: mail.SMTPSettings{Host: s.Host(), Port: s.Port(), From: "auth@acme.test"},
		Hostname:     "auth.acme.test",
		TLS:          s.ClientTLS(), Timeout: timeout,
	})
	must.Succeed(t, err)
	return outbox.Mails(mail.NewRenderer(mail.RendererOptions{Now: time.Now, Log: quiet()}), out)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start runs an outbox until stop, or the test's end.
func start(t testing.TB, o outbox.Options) (out *outbox.Outbox, stop func()) {
	t.Helper()
	if o.Root == nil {
		o.Root = root
	}
	if o.Log == nil {
		o.Log = quiet()
	}
	out = outbox.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { out.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return out, stop
}

// row is the message as `auth mail list` shows it.
func row(t testing.TB, db *store.DB, id uuid.UUID) store.Message {
	t.Helper()
	list, err := db.Messages(context.Background(), store.MessageFilter{Limit: 1000}, time.Now())
	must.Succeed(t, err)
	for _, m := range list {
		if m.ID == id {
			return m
		}
	}
	t.Fatalf("no message %s", id)
	return store.Message{}
}

// nothingWaits fails if a message could still be claimed within its time.
func nothingWaits(t testing.TB, db *store.DB, now time.Time) {
	t.Helper()
	list, err := storetest.Claim(context.Background(), db, now.Add(59*time.Minute), time.Minute, 1000)
	if err != nil || len(list) > 0 {
		t.Errorf("still to be claimed: %+v, %v", list, err)
	}
}

// counts are how often each Message-ID was taken.
func counts(t testing.TB, s *smtptest.Server) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, m := range s.Mails() {
		n[strings.Trim(m.Message(t).Header.Get("Message-Id"), "<>")]++
	}
	return n
}

func messageID(id uuid.UUID) string { return id.String() + "@auth.acme.test" }

// senderFunc is a Sender.
type senderFunc func(context.Context, outbox.Item) error

func (f senderFunc) Send(ctx context.Context, m outbox.Item) error { return f(ctx, m) }

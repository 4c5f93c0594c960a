package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/mailbox"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
)

// TestDelivery: both channels, to SMTP and to the dev mailbox; nothing is left over.
func TestDelivery(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{StartTLS: true})
	box := mailbox.New(c.Now)
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: smtpSender(t, s, 0), mail.ChannelSMS: outbox.Texts(box),
	}})
	var mails, texts []uuid.UUID
	for range 30 {
		mails = append(mails, order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")))
		texts = append(texts, order(t, db, noon, mail.ChannelSMS,
			mail.SMS{To: "15550001", Text: "Your code is 123456", Token: "123456", Kind: "sms", Channel: "sms"}))
	}
	out.Wake()
	await.True(t, "all noted as sent", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "sent", Limit: 100}, time.Now())
		return err == nil && len(list) == 60
	})
	n := counts(t, s)
	for _, id := range mails {
		if n[messageID(id)] != 1 {
			t.Errorf("mail %s was taken %d times", id, n[messageID(id)])
		}
	}
	if got := box.Messages(mailbox.Filter{Channel: "sms"}); len(got) != len(texts) ||
		got[0].Code != "123456" || got[0].To != "15550001" {
		t.Errorf("%d SMS: %+v", len(got), got)
	}
	msg := s.Mails()[0].Message(t)
	if got := msg.Header.Get("Date"); got != "Wed, 04 Mar 2026 12:00:00 +0000" {
		t.Errorf("Date: %s", got)
	}
	nothingWaits(t, db, noon)
}

// TestDelivery_secureEmailChange: what was ordered for a hook that is gone by now are two mails, each with an id that
// stays.
func TestDelivery_secureEmailChange(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	var mu sync.Mutex
	var taken []mail.Message
	failed := false
	to := mailSenderFunc(func(m mail.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if m.To == "new@acme.test" && !failed {
			failed = true
			return errors.New("not now")
		}
		taken = append(taken, m)
		return nil
	})
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: outbox.Mails(mail.NewRenderer(mail.RendererOptions{Now: time.Now, Log: quiet()}), to),
	}})
	both, current := aMail("new@acme.test"), aMail("old@acme.test")
	both.Current = &current
	id := order(t, db, noon, mail.ChannelEmail, both)
	out.Wake()
	await.True(t, "a failure", func() bool { return row(t, db, id).Error != "" })
	c.Advance(time.Minute)
	out.Wake()
	await.True(t, "sent", func() bool { return row(t, db, id).State == "sent" })
	mu.Lock()
	defer mu.Unlock()
	if len(taken) != 3 || taken[0].To != "old@acme.test" || taken[1].ID != taken[0].ID ||
		taken[2].To != "new@acme.test" || taken[2].ID != id || taken[0].ID == id {
		t.Errorf("%+v", taken)
	}
}

type mailSenderFunc func(mail.Message) error

func (f mailSenderFunc) Send(_ context.Context, m mail.Message) error { return f(m) }

// TestPoll: a message that another process wrote is found without a Wake.
func TestPoll(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	box := mailbox.New(c.Now)
	start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{mail.ChannelSMS: outbox.Texts(box)}})
	order(t, db, noon, mail.ChannelSMS, mail.SMS{To: "1", Text: "x"})
	await.True(t, "the poll finds it", func() bool { return len(box.Messages(mailbox.Filter{})) == 1 })
}

// TestNoSender: what this process can't send stays untouched for one that can.
func TestNoSender(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	box := mailbox.New(c.Now)
	out, stop := start(t, outbox.Options{DB: db, Now: c.Now,
		Senders: map[string]outbox.Sender{
			mail.ChannelEmail: outbox.Mails(mail.NewRenderer(mail.RendererOptions{Now: c.Now,
				Log: quiet()}), box)}})
	sms := order(t, db, noon, mail.ChannelSMS, mail.SMS{To: "1", Text: "x"})
	order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	out.Wake()
	await.True(t, "the mail", func() bool { return len(box.Messages(mailbox.Filter{})) == 1 })
	stop()
	if m := row(t, db, sms); m.State != "pending" || m.Attempts != 0 {
		t.Errorf("%+v", m)
	}
	c.Advance(time.Hour)
	start(t, outbox.Options{DB: db, Now: c.Now})
	await.True(t, "it expires", func() bool { return row(t, db, sms).State == "expired" })
}

// resting is a Texter that can be without a gateway.
type resting struct {
	*mailbox.Box
	ready atomic.Bool
}

func (r *resting) Ready() bool { return r.ready.Load() }

// TestSenderWithoutSettings: a sender that has nothing to send with leaves its messages untouched, and sends them when
// it has.
func TestSenderWithoutSettings(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	box := mailbox.New(c.Now)
	to := &resting{Box: box}
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelSMS:   outbox.Texts(to),
		mail.ChannelEmail: outbox.Mails(mail.NewRenderer(mail.RendererOptions{Now: c.Now, Log: quiet()}), box),
	}})
	sms := order(t, db, noon, mail.ChannelSMS, mail.SMS{To: "1", Text: "x"})
	order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	out.Wake()
	await.True(t, "the mail", func() bool { return len(box.Messages(mailbox.Filter{})) == 1 })
	if m := row(t, db, sms); m.State != "pending" || m.Attempts != 0 {
		t.Errorf("%+v", m)
	}
	to.ready.Store(true)
	await.True(t, "the SMS, without anybody's Wake", func() bool { return row(t, db, sms).State == "sent" })
	if m := row(t, db, sms); m.Attempts != 1 {
		t.Errorf("%+v", m)
	}
}

// TestRetry: growing pauses, ten tries, then it fails visibly; nothing of the mail is in the log.
func TestRetry(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	var log logtest.Buffer
	out, stop := start(t, outbox.Options{DB: db, Now: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	s.Behave(smtptest.At(smtptest.Rcpt, smtptest.Action{Reply: "451 4.3.0 ada@acme.test: later 123456"}))
	id := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	for try := 1; try <= 10; try++ {
		out.Wake()
		await.True(t, "the next try", func() bool {
			m := row(t, db, id)
			return m.Attempts == try && (m.State != "pending" || m.Error != "" && m.DueAt.Sub(c.Now()) != lease)
		})
		m := row(t, db, id)
		if m.Error != "smtp: RCPT TO: 451 4.3.0 <recipient>: later <code>" {
			t.Fatalf("error: %q", m.Error)
		}
		if try == 10 {
			break
		}
		want := min(5*time.Second<<(try-1), 10*time.Minute)
		got := m.DueAt.Sub(c.Now())
		if got < want || got > want+want/10 || m.State != "pending" {
			t.Fatalf("after try %d it is due in %v, want %v and up to a tenth more", try, got, want)
		}
		c.Advance(got)
	}
	if m := row(t, db, id); m.State != "failed" {
		t.Errorf("after ten tries: %+v", m)
	}
	stop()
	if n := len(s.Mails()); n != 0 {
		t.Errorf("%d mails", n)
	}
	nothingWaits(t, db, c.Now())
	text := log.String()
	for _, no := range []string{"ada@", "123456", "token=abc"} {
		if strings.Contains(text, no) {
			t.Errorf("the log has %q:\n%s", no, text)
		}
	}
	if !strings.Contains(text, id.String()) || !strings.Contains(text, "failed and is not retried") {
		t.Errorf("the log: %s", text)
	}
}

// TestPermanentFailure: what can't ever be sent fails at once, with a reason; what an operator can mend waits.
func TestPermanentFailure(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: smtpSender(t, s, 0), mail.ChannelSMS: senderFunc(func(context.Context, outbox.Item) error {
			panic("a bug")
		}),
	}})
	f := func(id uuid.UUID, state, reason string) {
		t.Helper()
		out.Wake()
		await.True(t, reason, func() bool {
			m := row(t, db, id)
			return m.State == state && strings.Contains(m.Error, reason)
		})
	}
	id := uuid.New()
	f(order(t, db, noon, mail.ChannelEmail, mail.Payload{To: "a@b.test", Kind: "unheard_of"}), "failed",
		`no kind "unheard_of"`)
	f(order(t, db, noon, mail.ChannelEmail, 7), "failed", "the payload is no mail")
	f(order(t, db, noon, mail.ChannelEmail, aMail("a b@c.test")), "failed", "no address")
	f(orderSealed(t, db, noon, mail.ChannelEmail, uuid.New(), root.Seal(secret.Outbox, []byte("{}"), id[:])), "failed",
		"damaged or belong elsewhere")
	other := secret.NewRoot("another root key")
	f(orderSealed(t, db, noon, mail.ChannelEmail, id, other.Seal(secret.Outbox, []byte("{}"), id[:])), "pending",
		"AUTH_SECRET_KEYS_PREVIOUS")
	f(order(t, db, noon, mail.ChannelSMS, mail.SMS{}), "pending", "a fault in the service")
	s.Behave(smtptest.At(smtptest.Rcpt, smtptest.Action{Reply: "550 5.1.1 nobody here"}))
	f(order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")), "failed", "550 5.1.1 nobody here")
	s.Behave(smtptest.At(smtptest.From, smtptest.Action{Reply: "550 not you"}))
	f(order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")), "pending", "550 not you")
}

// TestDeadServer: while SMTP hangs, SMS go their way, no more than the bound are under way, and the
// mails that wait are none the worse for it.
func TestDeadServer(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	box := mailbox.New(c.Now)
	s.Behave(smtptest.At(smtptest.Connect, smtptest.Action{Hang: true}))
	var ids []uuid.UUID
	for range 10 {
		ids = append(ids, order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")))
	}
	out, stop := start(t, outbox.Options{DB: db, Now: c.Now, Parallel: 3, Grace: time.Millisecond,
		Senders: map[string]outbox.Sender{
			mail.ChannelEmail: smtpSender(t, s, time.Hour), mail.ChannelSMS: outbox.Texts(box),
		}})
	await.True(t, "three hang", func() bool { return s.Dialled() == 3 })
	for i := range 20 {
		order(t, db, noon, mail.ChannelSMS, mail.SMS{To: "1", Text: "x"})
		out.Wake()
		await.True(t, "the SMS", func() bool { return len(box.Messages(mailbox.Filter{})) == i+1 })
	}
	if n := s.Dialled(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
	stop() // cuts and gives back
	for _, id := range ids {
		if m := row(t, db, id); m.State != "pending" || m.Attempts != 0 || m.DueAt.After(c.Now()) {
			t.Errorf("after the drain: %+v", m)
		}
	}
	s.Behave(nil)
	start(t, outbox.Options{DB: db, Now: c.Now,
		Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	await.True(t, "all mails", func() bool { return len(s.Mails()) == 10 })
}

// TestDrain: what is being sent comes to its end within the grace period.
func TestDrain(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	begun, end := make(chan bool), make(chan bool)
	_, stop := start(t, outbox.Options{DB: db, Now: c.Now, Grace: time.Hour, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: senderFunc(func(ctx context.Context, _ outbox.Item) error {
			begun <- true
			<-end
			return ctx.Err()
		}),
	}})
	id := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	<-begun
	stopped := make(chan bool)
	go func() { stop(); close(stopped) }()
	end <- true
	<-stopped
	if m := row(t, db, id); m.State != "sent" {
		t.Errorf("%+v", m)
	}
}

// TestReplicas: three of them share the work; nothing is sent twice.
func TestReplicas(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	var ids []uuid.UUID
	for range 100 {
		ids = append(ids, order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")))
	}
	for range 3 {
		start(t, outbox.Options{DB: db, Now: c.Now,
			Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	}
	await.True(t, "all noted as sent", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "sent", Limit: 1000}, time.Now())
		return err == nil && len(list) == len(ids)
	})
	n := counts(t, s)
	for _, id := range ids {
		if n[messageID(id)] != 1 {
			t.Errorf("%s was taken %d times", id, n[messageID(id)])
		}
	}
}

// TestExpiry: nothing is sent after its time, and it is wiped then.
func TestExpiry(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	id := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	c.Advance(time.Hour)
	var sent atomic.Int64
	start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: senderFunc(func(context.Context, outbox.Item) error { sent.Add(1); return nil }),
	}})
	await.True(t, "it expires", func() bool { return row(t, db, id).State == "expired" })
	if sent.Load() != 0 {
		t.Error("sent after its time")
	}
}

// TestUserGone: the messages of a deleted user are not sent.
func TestUserGone(t *testing.T) {
	t.Parallel()
	db, c := storetest.Open(t), new(clock)
	b, user := db.Batch(), uuid.New()
	b.InsertUser(store.User{ID: user, Aud: "authenticated", Role: "authenticated", CreatedAt: noon, UpdatedAt: noon})
	id := uuid.New()
	b.InsertMessage(store.NewMessage{ID: id, User: user, Channel: mail.ChannelEmail, Kind: "x",
		Payload: root.Seal(secret.Outbox, []byte("{}"), id[:]), At: noon, ExpiresAt: noon.Add(time.Hour)})
	b.CancelMessages(user, noon)
	if err := b.Send(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	var sent atomic.Int64
	start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: senderFunc(func(_ context.Context, m outbox.Item) error {
			if m.ID == id {
				return errors.New("sent")
			}
			sent.Add(1)
			return nil
		}),
	}})
	await.True(t, "the other", func() bool { return row(t, db, other).State == "sent" })
	if m := row(t, db, id); m.State != "expired" || m.Attempts != 0 {
		t.Errorf("%+v", m)
	}
}

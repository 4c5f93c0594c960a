package outbox_test

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// What makes this test binary a sender that is there to be killed.
const (
	childURL  = "OUTBOX_TEST_URL"
	childSMTP = "OUTBOX_TEST_SMTP"
)

// child runs an outbox as the daemon does, at the fixed time noon.
func child() {
	db, err := store.Open(context.Background(),
		store.Options{URL: os.Getenv(childURL), Settings: store.Settings{MaxConns: 4}})
	if err != nil {
		panic(err)
	}
	host, port, err := net.SplitHostPort(os.Getenv(childSMTP))
	if err != nil {
		panic(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	out, err := mail.NewSMTP(mail.SMTPOptions{SMTPSettings: mail.SMTPSettings{Host: host, Port: number,
		From: "auth@acme.test"}, Hostname: "auth.acme.test"})
	if err != nil {
		panic(err)
	}
	renderer := mail.NewRenderer(mail.RendererOptions{Now: time.Now, Log: quiet()})
	outbox.New(outbox.Options{
		DB: db, Root: root, Log: quiet(), Now: func() time.Time { return noon },
		Senders: map[string]outbox.Sender{mail.ChannelEmail: outbox.Mails(renderer, out)},
	}).Run(context.Background())
}

// TestOutage: the SMTP server is down and comes back; each mail is taken exactly once.
func TestOutage(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	s.Down()
	var ids []uuid.UUID
	for range 40 {
		ids = append(ids, order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")))
	}
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now,
		Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	failed := func(times int) {
		await.True(t, "all have failed", func() bool {
			list, err := db.Messages(t.Context(), store.MessageFilter{State: "pending", Limit: 1000}, time.Now())
			n := 0
			for _, m := range list {
				if m.Attempts == times && m.Error != "" && m.DueAt.Sub(c.Now()) != lease {
					n++
				}
			}
			return err == nil && n == len(ids)
		})
	}
	out.Wake()
	failed(1)
	c.Advance(10 * time.Second)
	out.Wake()
	failed(2)

	// It is back, but not well: it refuses, and breaks off in the middle.
	s.Up()
	s.Behave(smtptest.At(smtptest.Connect, smtptest.Action{Reply: "421 warming up"}))
	c.Advance(20 * time.Second)
	out.Wake()
	failed(3)
	s.Behave(smtptest.At(smtptest.Text, smtptest.Action{Drop: true}))
	c.Advance(30 * time.Second)
	out.Wake()
	failed(4)
	s.Behave(nil)
	c.Advance(time.Minute)
	out.Wake()
	await.True(t, "all sent", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "sent", Limit: 1000}, time.Now())
		return err == nil && len(list) == len(ids)
	})
	got := counts(t, s)
	for _, id := range ids {
		if got[messageID(id)] != 1 {
			t.Errorf("%s was taken %d times", id, got[messageID(id)])
		}
	}
}

// TestChaos: a server that fails at random in every way, and two replicas that share the work: no mail is
// lost, and only one whose taking was never answered comes twice.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 0))
	unanswered := 0
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{StartTLS: true})
	s.Behave(func(at smtptest.Step) smtptest.Action {
		mu.Lock()
		defer mu.Unlock()
		if dice.IntN(16) > 0 {
			return smtptest.Action{}
		}
		if drop := dice.IntN(2) == 0; drop || at == smtptest.Taken {
			if at == smtptest.Taken {
				unanswered++
			}
			return smtptest.Action{Drop: true}
		}
		return smtptest.Action{Reply: "451 4.0.0 at random"}
	})
	var ids []uuid.UUID
	for range 80 {
		ids = append(ids, order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test")))
	}
	var replicas []*outbox.Outbox
	for range 2 {
		out, _ := start(t, outbox.Options{DB: db, Now: c.Now,
			Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
		replicas = append(replicas, out)
	}
	// The clock moves to the next try when nothing is being sent: no lease ends by itself.
	await.True(t, "all sent", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "pending", Limit: 1000}, time.Now())
		must.Succeed(t, err)
		next := time.Hour
		for _, m := range list {
			wait := m.DueAt.Sub(c.Now())
			if wait <= 0 || wait == lease {
				return false
			}
			next = min(next, wait)
		}
		if len(list) > 0 {
			c.Advance(next)
		}
		for _, out := range replicas {
			out.Wake()
		}
		return len(list) == 0
	})
	got, twice := counts(t, s), 0
	for _, id := range ids {
		if m := row(t, db, id); m.State != "sent" && m.State != "failed" || m.State == "sent" &&
			got[messageID(id)] == 0 {
			t.Errorf("taken %d times: %+v", got[messageID(id)], m)
		}
		twice += max(got[messageID(id)]-1, 0)
	}
	mu.Lock()
	defer mu.Unlock()
	if twice > unanswered {
		t.Errorf("%d mails came again, %d were not answered", twice, unanswered)
	}
}

// TestKilledSender: the process dies after the server took the mail and before it could note that. The
// mail is sent again when the lease is over, under the same Message-ID.
func TestKilledSender(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 4}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	s := smtptest.Start(t, smtptest.Options{})
	s.Behave(smtptest.At(smtptest.Taken, smtptest.Action{Hang: true}))
	id := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))

	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childURL+"="+url, childSMTP+"="+net.JoinHostPort(s.Host(), strconv.Itoa(s.Port())))
	cmd.Stderr = os.Stderr
	must.Succeed(t, cmd.Start())
	await.True(t, "the server has it", func() bool { return len(s.Mails()) == 1 })
	must.Succeed(t, cmd.Process.Kill())
	cmd.Wait()
	s.Behave(nil)

	c := new(clock)
	c.Advance(59 * time.Second)
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now,
		Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	if m := row(t, db, id); m.State != "pending" || m.Attempts != 1 {
		t.Errorf("within the lease: %+v", m)
	}
	c.Advance(2 * time.Second)
	out.Wake()
	await.True(t, "sent again", func() bool { return row(t, db, id).State == "sent" })
	if n := counts(t, s); len(n) != 1 || n[messageID(id)] != 2 {
		t.Errorf("taken: %v", n)
	}
}

// TestDatabaseUnavailable: the database dies between the sending and the note of it, for longer than a lease.
// The mail is not sent again.
func TestDatabaseUnavailable(t *testing.T) {
	t.Parallel()
	p := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	db, err := store.Open(t.Context(),
		store.Options{URL: p.PostgresURL("postgres"), Settings: store.Settings{MaxConns: 8}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	s, c := smtptest.Start(t, smtptest.Options{}), new(clock)
	sender := smtpSender(t, s, 0)
	id := order(t, db, noon, mail.ChannelEmail, aMail("ada@acme.test"))
	killed := make(chan bool)
	out, _ := start(t, outbox.Options{DB: db, Now: c.Now, Senders: map[string]outbox.Sender{
		mail.ChannelEmail: senderFunc(func(ctx context.Context, m outbox.Item) error {
			err := sender.Send(ctx, m)
			p.Kill()
			close(killed)
			return err
		}),
	}})
	<-killed
	c.Advance(2 * time.Minute)
	out.Wake()
	must.Succeed(t, p.Restart(t.Context()))
	await.True(t, "noted", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "sent", Limit: 10}, time.Now())
		return err == nil && len(list) == 1 && list[0].ID == id
	})
	if n := counts(t, s); len(n) != 1 || n[messageID(id)] != 1 {
		t.Errorf("taken: %v", n)
	}
}

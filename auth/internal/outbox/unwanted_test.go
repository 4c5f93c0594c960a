package outbox_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/auth/internal/outbox"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// A process dies after the receiver took its mails. They are sent once more, but for those whose link was used since.
func TestSecondAttempt(t *testing.T) {
	t.Parallel()
	db, c, s := storetest.Open(t), new(clock), smtptest.Start(t, smtptest.Options{})
	user := store.User{ID: uuid.New(), Aud: "authenticated", Email: "ada@acme.test", CreatedAt: noon, UpdatedAt: noon,
		AppMetadata: json.RawMessage(`{}`), UserMetadata: json.RawMessage(`{}`)}
	text, err := json.Marshal(aMail("ada@acme.test"))
	must.Succeed(t, err)
	ids := map[string]uuid.UUID{}
	b := db.Batch()
	b.InsertUser(user)
	for i, m := range []struct {
		name, kind string
		token      store.Kind
	}{{"used", "magic_link", store.KindMagicLink}, {"unused", "recovery", store.KindRecovery},
		{"notification", "password_changed_notification", ""}} {
		at, id := noon.Add(time.Duration(i)*time.Microsecond), uuid.New()
		ids[m.name] = id
		if m.token != "" {
			b.InsertToken(store.NewToken{Token: store.Token{ID: uuid.New(), User: user.ID, Kind: m.token,
				Address: user.Email, CreatedAt: at, ExpiresAt: noon.Add(time.Hour)}})
		}
		b.InsertMessage(store.NewMessage{ID: id, User: user.ID, Channel: mail.ChannelEmail, Kind: m.kind,
			Payload: root.Seal(secret.Outbox, text, id[:]), At: at, ExpiresAt: noon.Add(time.Hour)})
	}
	must.Succeed(t, b.Send(t.Context()))
	c.Advance(time.Second)
	taken, err := db.ClaimMessagesOf(t.Context(), mail.ChannelEmail, c.Now(), lease, 10) // by the process that dies
	if err != nil || len(taken) != 3 {
		t.Fatal(len(taken), err)
	}
	used := db.Batch()
	used.DeleteTokens(user.ID, store.KindMagicLink)
	must.Succeed(t, used.Send(t.Context()))
	c.Advance(2 * lease)
	start(t, outbox.Options{DB: db, Now: c.Now,
		Senders: map[string]outbox.Sender{mail.ChannelEmail: smtpSender(t, s, 0)}})
	await.True(t, "nothing waits", func() bool {
		list, err := db.Messages(t.Context(), store.MessageFilter{State: "pending", Limit: 10}, time.Now())
		return err == nil && len(list) == 0
	})
	got := counts(t, s)
	for name, want := range map[string]int{"used": 0, "unused": 1, "notification": 1} {
		m := row(t, db, ids[name])
		if got[messageID(ids[name])] != want || (m.State == "sent") != (want == 1) {
			t.Errorf("%s: taken %d times, and is %s: %s", name, got[messageID(ids[name])], m.State, m.Error)
		}
	}
}

package flow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// What an attempt leaves is forgotten when it is undone, and follows the commit in a fixed order.
func TestCommit_follows(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), store.Options{URL: storetest.URL(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	var did []string
	f := &Flow{Core: &Core{DB: db, clock: time.Now, wake: func() { did = append(did, "wake") }}, Settings: new(Settings)}
	message := store.NewMessage{ID: uuid.New(), Channel: mail.ChannelEmail, Kind: "test", Payload: []byte("x"),
		At: f.Core.now(), DueAt: f.Core.now().Add(time.Minute), ExpiresAt: f.Core.now().Add(time.Hour)}
	f.Settings.Hooks.SendNow = map[string]func(context.Context, uuid.UUID) error{
		mail.ChannelEmail: func(context.Context, uuid.UUID) error {
			did = append(did, "send")
			return nil
		}}
	no := errors.New("no")
	tries := 0
	err = f.Commit(t.Context(), func(tx *Tx) error {
		tries++
		tx.Refuse(no)
		tx.Then(func(context.Context) { did = append(did, fmt.Sprintf("then %d", tries)) })
		b := tx.Batch()
		b.Message(uuid.Nil, message)
		b.Message(uuid.Nil, store.NewMessage{}) // nothing
		if tries == 1 {
			return &pgconn.PgError{Code: "40P01"}
		}
		return b.Send(t.Context())
	})
	if got := fmt.Sprint(did); got != "[then 2 wake send]" {
		t.Errorf("after the commit: %s", got)
	}
	if errors.Is(err, no) || refusal.Failure("try", err) != no {
		t.Errorf("%v, want the refusal, which only failure shows", err)
	}

	did = nil
	b := f.Batch()
	b.Then(func(context.Context) { t.Error("a batch that failed is followed by its task") })
	u := store.User{ID: uuid.New(), AppMetadata: []byte("{}"), UserMetadata: []byte("{}")}
	b.InsertUser(u)
	b.InsertUser(u)
	if err := f.Send(t.Context(), b); err == nil || did != nil {
		t.Errorf("%v, then %v", err, did)
	}
}

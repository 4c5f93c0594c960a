package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// TestClaimMessagesOf: a channel's messages are claimed apart; the other's stay as they were.
func TestClaimMessagesOf(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	mail := addMessage(t, db, noon)
	sms := store.NewMessage{ID: uuid.New(), Channel: "sms", Kind: "sms", Payload: []byte("sealed"), At: noon, ExpiresAt: noon.Add(time.Hour)}
	send(t, db, func(b *store.Batch) { b.InsertMessage(sms) })
	f := func(channel string, after time.Duration, want ...uuid.UUID) {
		t.Helper()
		got, err := db.ClaimMessagesOf(t.Context(), channel, noon.Add(after), time.Minute, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) || len(want) == 1 && (got[0].ID != want[0] || string(got[0].Payload) != "sealed" || got[0].Attempts != 1) {
			t.Errorf("claimed of %s: %+v, want %v", channel, got, want)
		}
	}
	f("email", -time.Second)
	f("email", 0, mail)
	f("email", 59*time.Second)
	f("sms", time.Second, sms.ID)
	f("sms", time.Hour)
}

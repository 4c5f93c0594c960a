package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// Ten replicas start on an empty database: all work with one key.
func TestFirstSigningKey(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	kept := make([]string, 10)
	await.Together(len(kept), func(i int) {
		list, err := db.FirstSigningKey(t.Context(),
			store.SigningKey{KID: fmt.Sprint(i), Algorithm: "RS256", Sealed: []byte("sealed"), CreatedAt: noon,
				SignsAt: noon})
		if err != nil || len(list) != 1 {
			t.Errorf("%d keys, %v", len(list), err)
			return
		}
		kept[i] = list[0].KID
	})
	for _, k := range kept {
		if k != kept[0] {
			t.Errorf("keys %v", kept)
		}
	}
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := storetest.Open(t)
	if got, at, err := db.SigningKeys(ctx); len(got) != 0 || err != nil || at.Server.IsZero() {
		t.Errorf("without a key: %v, read at %v, %v", got, at, err)
	}
	a := store.SigningKey{KID: "a", Algorithm: "RS256", Sealed: []byte("sealed"), CreatedAt: noon, SignsAt: noon}
	b := store.SigningKey{KID: "b", Algorithm: "ES256", Sealed: []byte("sealed"), CreatedAt: noon,
		SignsAt: noon.Add(20 * time.Minute)}
	send(t, db, func(batch *store.Batch) {
		batch.InsertSigningKey(a)
		batch.InsertSigningKey(b)
		batch.RevokeSigningKey("a", noon.Add(time.Hour))
		batch.RevokeSigningKey("a", noon.Add(2*time.Hour))
	})
	must.Succeed(t, db.ResealSigningKey(ctx, "b", []byte("anew")))
	a.RevokedAt, b.Sealed = noon.Add(time.Hour), []byte("anew")
	got, at, err := db.SigningKeys(ctx)
	if diff := cmp.Diff([]store.SigningKey{b, a}, got); diff != "" || err != nil {
		t.Errorf("(-want +got): %v\n%s", err, diff)
	}
	alone, err := db.Time(ctx)
	for _, r := range []clock.Reading{at, alone} { // the server's clock is this machine's
		took := r.Received.Sub(r.Sent)
		if off := r.Server.Sub(r.Sent.Round(0)); err != nil || off < -time.Second || off > took+time.Second {
			t.Errorf("the server's time is %s after %s: %v", off, r.Sent, err)
		}
	}
	must.Succeed(t, db.DeleteSigningKey(ctx, "a"))
	if got, _, err := db.SigningKeys(ctx); len(got) != 1 || err != nil {
		t.Errorf("left: %v, %v", got, err)
	}
}

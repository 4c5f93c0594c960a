package store_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
)

// Rows without an actor share 60 a minute over all replicas, whichever statement writes them. None is lost: what is
// left out is counted in the traits of a later one. Rows with an actor are not held up.
func TestAudit_unnamed(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	var dbs [2]*store.DB
	for i := range dbs {
		dbs[i] = open(t, url, "")
	}
	failed := func(i int, now time.Time) {
		db, a := dbs[i%2], store.Audit{At: now, Action: store.ActionVerificationFailed, IP: "192.0.2.1",
			Traits: []byte(`{"type": "sms"}`)}
		key := []byte(fmt.Sprint(i, now))
		var err error
		switch i % 3 {
		case 0:
			b := db.Batch()
			b.Audit(a)
			err = b.Send(t.Context())
		case 1:
			b := db.Batch()
			b.AuditSeldom(store.NewInterval(key, time.Minute), a)
			err = b.Send(t.Context())
		default:
			err = db.FailedPassword(t.Context(),
				store.FailedPassword{Tries: store.Limit{Key: key, Size: 20, Refill: time.Hour}, Now: now,
					Note: store.NewInterval(append(key, 'n'), time.Minute), Audit: a})
		}
		if err != nil {
			t.Error(err)
		}
	}
	count := func() (rows, omitted int) {
		list, n, err := dbs[0].AuditLog(t.Context(), store.AuditFilter{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			var v struct{ Omitted int }
			if err := json.Unmarshal(r.Traits, &v); err != nil {
				t.Error(err)
			}
			omitted += v.Omitted
		}
		return n, omitted
	}
	await.Together(300, func(i int) { failed(i, noon) })
	if rows, _ := count(); rows != 60 {
		t.Errorf("%d rows of 300, want 60", rows)
	}
	send(t, dbs[0], func(b *store.Batch) {
		b.Audit(store.Audit{At: noon, Action: store.ActionKeyRotated, ActorRole: "auth keys", Traits: []byte(`{}`)})
	})
	for i := range 4 { // two of each replica
		failed(300+i, noon.Add(time.Duration(1+i)*2*time.Second))
	}
	rows, omitted := count()
	if rows != 65 || rows-1+omitted != 304 {
		t.Errorf("%d rows and %d left out of 304 and one", rows, omitted)
	}
}

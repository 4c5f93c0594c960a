package daemon

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const openTakeover = `a takeover from schema "auth" is open since 2031-03-04T12:00:00Z: auth takeover ends it, auth takeover -abandon empties the tables`

// A takeover that begins while the daemon runs stops it, and one that was closed meanwhile is known at once.
func TestWatchTakeover(t *testing.T) {
	t.Parallel()
	c := settingsOf(t, "")
	var text bytes.Buffer
	db := storetest.Open(t)
	root := secret.NewRoot("root")
	d := &daemon{db: db, log: NewLogger(&text, c.Log), core: flow.New(flow.Options{DB: db, Root: root,
		Refresh: token.NewRefreshCodec(root.Keys(secret.Refresh))}, flow.Settings{})}
	must.Succeed(t, must.ErrOf(CheckTakeover(t.Context(), db)))
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.watchTakeover(ctx, time.Millisecond, failed)
	}()
	if d.core.IsFormer("abcdefghijkl") {
		t.Error("former tokens are looked up without a takeover")
	}
	noon := time.Date(2031, 3, 4, 12, 0, 0, 0, time.UTC)
	const insert = `insert into moves (id, kind, source, state, started_at, closed_at) values ($1, 'takeover', 'db.example:5432/app auth', $2, $3, $4)`
	storetest.Exec(t, db, insert, uuid.New(), "closed", noon, noon)
	await.True(t, "the closed takeover is known", func() bool { return d.core.IsFormer("abcdefghijkl") })
	storetest.Exec(t, db, insert, uuid.New(), "open", noon, nil)
	if err := <-failed; err.Error() != openTakeover {
		t.Error(err)
	}
	<-ended
	if !bytes.Contains(text.Bytes(), []byte("auth takeover ends it")) ||
		!bytes.Contains(text.Bytes(), []byte(`"level":"error"`)) {
		t.Error(text.String())
	}
	if _, err := CheckTakeover(t.Context(), db); err == nil || err.Error() != openTakeover {
		t.Error(err)
	}
}

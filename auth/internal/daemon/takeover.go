package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/store"
)

// takeoverEvery is how often a running daemon checks whether a takeover (of the users of supabase/auth) was begun or
// closed.
const takeoverEvery = time.Minute

// CheckTakeover returns an error while a takeover is open. Until it is closed, no other program may change the tables,
// since the takeover replaces their data by the data of the former service.
func CheckTakeover(ctx context.Context, db *store.DB) (store.Takeover, error) {
	m, err := db.Takeover(ctx)
	if err == nil && m.Open {
		schema := m.Source[strings.LastIndexByte(m.Source, ' ')+1:]
		err = takeoverError(fmt.Sprintf(
			"a takeover from schema %q is open since %s: auth takeover ends it, auth takeover -abandon empties the "+
				"tables",
			schema, m.StartedAt.Format(time.RFC3339)))
	}
	return m, err
}

// takeoverError is returned while a takeover is open.
type takeoverError string

func (e takeoverError) Error() string { return string(e) }

// useTakeover notifies the flows if a takeover has been closed.
func (d *daemon) useTakeover(m store.Takeover) {
	if !m.ClosedAt.IsZero() {
		d.core.TookOver(m.LinksUntil)
	}
}

// FormerDefaults returns the settings whose defaults differ from those of supabase/auth, for operators who move from
// it.
func FormerDefaults(ctx context.Context, db *store.DB, l *config.Live,
	m store.Takeover) ([]config.FormerDefault, error) {
	var anonymous int64
	if !m.ClosedAt.IsZero() {
		var err error
		if anonymous, err = db.CarriedAnonymous(ctx, m.ClosedAt); err != nil {
			return nil, err
		}
	}
	return l.FormerDefaults(!m.ClosedAt.IsZero(), anonymous), nil
}

// watchTakeover reports an error to failed, which stops the daemon, if a takeover begins while the daemon runs. If a
// takeover was begun and closed between two checks, it uses the result. If the database does not answer, it waits for
// the next check.
func (d *daemon) watchTakeover(ctx context.Context, every time.Duration, failed chan<- error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		m, err := CheckTakeover(ctx, d.db)
		if _, open := err.(takeoverError); open {
			d.log.Error(err.Error())
			failed <- err
			return
		}
		if err == nil {
			d.useTakeover(m)
		}
	}
}

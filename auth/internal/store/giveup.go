package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// lastWord is how long a server may take to say what became of a statement that it was told to cancel.
	lastWord = time.Second
	// settled is how long after it took the message a server may be at passing it on to the statement; until
	// then the connection has no other one, which might be cancelled in its place.
	settled = 100 * time.Millisecond
	// toldWithin bounds the message itself.
	toldWithin = 15 * time.Second
)

// giveUp is what happens to a statement whose caller has no more time: the server is told to cancel it, and
// what it then says counts, "cancelled" or "done", so that who is told of a failure knows that nothing will
// happen later. To close the connection would leave the statement waiting for its lock, and change rows
// when it has it.
//
// It is pgconn.CancelRequestContextWatcherHandler but for one thing: the message is never broken off, since
// PgBouncer 1.18 ends itself then.
type giveUp struct {
	conn  *pgconn.PgConn
	until time.Time     // the end of lastWord
	told  chan struct{} // closed when the server has the message, or never will
}

func newGiveUp(c *pgconn.PgConn) ctxwatch.Handler { return &giveUp{conn: c} }

// HandleCancel implements ctxwatch.Handler.
func (g *giveUp) HandleCancel(context.Context) {
	told := make(chan struct{})
	g.told, g.until = told, time.Now().Add(lastWord)
	g.conn.Conn().SetDeadline(g.until)
	go func() {
		defer close(told)
		ctx, cancel := context.WithTimeout(context.Background(), toldWithin)
		defer cancel()
		if g.conn.CancelRequest(ctx) == nil {
			time.Sleep(settled)
		}
	}()
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler. A connection to which the message may still come is
// of no use to anybody.
func (g *giveUp) HandleUnwatchAfterCancel() {
	late := time.NewTimer(time.Until(g.until))
	defer late.Stop()
	select {
	case <-g.told:
		g.conn.Conn().SetDeadline(time.Time{})
	case <-late.C:
		g.conn.Close(context.Background()) // not only its socket: the pool has to know
	}
}

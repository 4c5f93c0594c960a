package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// cancelGrace is how long a server may take to report the outcome of a statement that it was sent a cancellation
	// for.
	cancelGrace = time.Second
	// cancelSettle is how long after it took the message a server may be at passing it on to the statement; until
	// then the connection has no other one, which might be cancelled in its place.
	cancelSettle = 100 * time.Millisecond
	// cancelTimeout bounds the message itself.
	cancelTimeout = 15 * time.Second
)

// hangUpPatience is how long a statement runs on whose caller has hung up. Nearly all are done by then, and their
// connections serve others at once: a cancel request costs a connection cancelSettle, and so would cost everybody when
// many hang up.
const hangUpPatience = 250 * time.Millisecond

// cancelHandler cancels a statement whose caller has no more time: the server gets a cancel request, and its reply
// decides, "cancelled" or "done", so that a caller to whom a failure is reported knows that nothing will happen
// later. Closing the connection would leave the statement waiting for its lock, and change rows once it holds it.
//
// It is pgconn.CancelRequestContextWatcherHandler with two differences: a caller that has hung up, which no answer
// reaches, leaves the statement hangUpPatience, and the cancel request is never broken off, since PgBouncer 1.18 ends
// itself then.
type cancelHandler struct {
	conn      *pgconn.PgConn
	request   *time.Timer   // sends the cancel request
	deadline  time.Time     // the end of cancelGrace
	delivered chan struct{} // closed when the server has the message, or never will
}

func newCancelHandler(c *pgconn.PgConn) ctxwatch.Handler { return &cancelHandler{conn: c} }

// HandleCancel implements ctxwatch.Handler.
func (h *cancelHandler) HandleCancel(ctx context.Context) {
	var patience time.Duration
	if ctx.Err() == context.Canceled {
		patience = hangUpPatience
		if deadline, ok := ctx.Deadline(); ok {
			patience = max(0, min(patience, time.Until(deadline)))
		}
	}
	delivered := make(chan struct{})
	h.delivered, h.deadline = delivered, time.Now().Add(patience+cancelGrace)
	h.conn.Conn().SetDeadline(h.deadline)
	h.request = time.AfterFunc(patience, func() {
		defer close(delivered)
		ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
		defer cancel()
		if h.conn.CancelRequest(ctx) == nil {
			time.Sleep(cancelSettle)
		}
	})
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler. A connection that the cancel request may still reach cannot
// be used again.
func (h *cancelHandler) HandleUnwatchAfterCancel() {
	if h.request.Stop() {
		h.conn.Conn().SetDeadline(time.Time{})
		return
	}
	grace := time.NewTimer(time.Until(h.deadline))
	defer grace.Stop()
	select {
	case <-h.delivered:
		h.conn.Conn().SetDeadline(time.Time{})
	case <-grace.C:
		h.conn.Close(context.Background()) // not only its socket: the pool has to know
	}
}

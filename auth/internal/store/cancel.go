package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// cancelGrace is how long, after a cancel request was sent, the server may take to report the outcome of the
	// statement.
	cancelGrace = time.Second
	// cancelSettle is how long the server may take to deliver a cancel request that it has accepted. During this time
	// no other statement runs on the connection, since the request might cancel that statement instead.
	cancelSettle = 100 * time.Millisecond
	// cancelTimeout limits the time for sending a cancel request.
	cancelTimeout = 15 * time.Second
)

// hangUpPatience is how long a statement continues after its caller has hung up. Nearly all statements end within this
// time, so that their connections are free at once. A cancel request, in contrast, blocks a connection for
// cancelSettle, which would slow down all callers when many hang up.
const hangUpPatience = 250 * time.Millisecond

// cancelHandler cancels a statement whose context has ended. It sends a cancel request and waits for the server's
// reply, "cancelled" or "done". So a caller that gets an error knows that the statement will not take effect later. If
// the connection were closed instead, a statement that waits for a lock would keep waiting, and change rows when it
// gets the lock.
//
// It is pgconn.CancelRequestContextWatcherHandler with two differences: after a hang-up the statement may continue for
// hangUpPatience, and the cancel request is never aborted, since PgBouncer 1.18 exits when a cancel request is aborted.
type cancelHandler struct {
	conn      *pgconn.PgConn
	request   *time.Timer   // sends the cancel request when it fires
	deadline  time.Time     // when cancelGrace is over
	delivered chan struct{} // closed when the cancel request was delivered or has failed
}

func newCancelHandler(c *pgconn.PgConn) ctxwatch.Handler { return &cancelHandler{conn: c} }

// HandleCancel implements ctxwatch.Handler: it starts the cancellation.
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

// HandleUnwatchAfterCancel implements ctxwatch.Handler: it ends the cancellation. If the cancel request may still reach
// the connection, it closes the connection.
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
		h.conn.Close(context.Background()) // closing only the socket would hide this from the pool
	}
}

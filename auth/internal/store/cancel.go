package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// cancelGrace is how long the server may take to report the outcome of a statement after a cancel request was sent.
	cancelGrace = time.Second
	// cancelSettle is how long the server may take to deliver a cancel request that it has accepted. Until then the
	// connection runs no other statement, which might be cancelled instead.
	cancelSettle = 100 * time.Millisecond
	// cancelTimeout bounds the sending of a cancel request.
	cancelTimeout = 15 * time.Second
)

// hangUpPatience is how long a statement keeps running after its caller has hung up. Nearly all statements end within
// it, and their connections serve others at once. A cancel request blocks a connection for cancelSettle, which would
// slow down all callers when many hang up.
const hangUpPatience = 250 * time.Millisecond

// cancelHandler cancels a statement whose caller has no more time: the server gets a cancel request, and its reply
// decides, "cancelled" or "done", so that a caller to whom a failure is reported knows that nothing will happen
// later. Closing the connection would leave the statement waiting for its lock, and change rows once it holds it.
//
// It is pgconn.CancelRequestContextWatcherHandler with two differences: after a hang-up the statement gets
// hangUpPatience, and the cancel request is never aborted, since an aborted one makes PgBouncer 1.18 exit.
type cancelHandler struct {
	conn      *pgconn.PgConn
	request   *time.Timer   // sends the cancel request
	deadline  time.Time     // the end of cancelGrace
	delivered chan struct{} // closed when the cancel request was delivered or has failed
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
		h.conn.Close(context.Background()) // closing only the socket would hide it from the pool
	}
}

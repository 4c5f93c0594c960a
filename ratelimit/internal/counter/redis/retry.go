package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// notExecuted says why a server has not executed a valid command. Nothing was counted, so the command can be sent
// again.
type notExecuted struct {
	reason retryReason
	to     string // for retryMoved and retryAsk: the address of the node that the server has named
}

type retryReason uint8

const (
	retryMoved  retryReason = iota // another node of the cluster serves the slot of the key
	retryAsk                       // another node may have the key, whose slot is moving there; it expects ASKING
	retryLater                     // the server cannot execute it now: it is loading, no master, or its cluster is down
	retryApart                     // the keys of a script are not all on this server at present
	retryUnsent                    // it was not sent, since there is no connection
)

var notNow, notTogether, notSent = notExecuted{reason: retryLater}, notExecuted{reason: retryApart},
	notExecuted{reason: retryUnsent}

// errUnsent is wrapped by errors of a connection over which nothing was sent.
var errUnsent = errors.New("not connected")

// resumer sends the hits again that a server has not executed.
type resumer interface {
	resume(ctx context.Context, req *counter.Request, undone *call) error
}

// resume implements resumer.
func (s *Server) resume(ctx context.Context, req *counter.Request, undone *call) error {
	return s.addLater(ctx, req, undone)
}

// refusal handles an error reply text that concerns the server, by setting o.notExecuted. For any other error, it
// leaves o.notExecuted nil.
func (l *redisLink) refusal(b *batch, o *op, text string) {
	code, rest, _ := strings.Cut(text, " ")
	inCluster := l.role == clusterServer
	switch code {
	case "MOVED", "ASK":
		_, to, ok := strings.Cut(rest, " ")
		if !inCluster || !ok {
			return
		}
		switch {
		case code == "MOVED":
			o.notExecuted = &notExecuted{retryMoved, strings.TrimSpace(to)}
		case o.kind == opStop && len(o.stop.hits) > 1:
			o.notExecuted = &notTogether // the script's other keys may still be on this node
		default:
			o.notExecuted = &notExecuted{retryAsk, strings.TrimSpace(to)}
		}
	case "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN":
		o.notExecuted, b.refusal = &notNow, code
	case "TRYAGAIN", "CROSSSLOT":
		if inCluster {
			o.notExecuted = &notTogether
		}
	case "ERR":
		// A slot of the script's keys is moving, or an old Redis does not understand the script.
		if inCluster && o.kind == opStop && (strings.Contains(rest, "non local key") ||
			strings.Contains(rest, "same slot") || strings.Contains(rest, "compiling script")) {
			o.notExecuted = &notTogether
		}
	}
}

// remainder is the part of a request that has not been executed yet.
type remainder struct {
	req    counter.Request
	at     []int    // the index of each hit in the whole request
	to     []string // the node for each hit, as the node in from has named it; empty: the node that serves its slot
	from   []string
	asking []bool      // for each hit, whether the slot of its key is moving to the node in to
	reason retryReason // the greatest retryReason of all hits
}

// take adds the hits of c that c's server, at the address from, has not executed. at has the index in the whole request
// of each of c's hits; nil means that c has the whole request.
func (l *remainder) take(c *call, req *counter.Request, at []int, from string) {
	for i := range c.hits {
		h := &c.hits[i]
		if h.notExecuted == nil {
			continue
		}
		place := i
		if at != nil {
			place = at[i]
		}
		l.add(req, &req.Hits[i], place, h.notExecuted.reason)
		last := len(l.at) - 1
		l.to[last], l.from[last], l.asking[last] = h.notExecuted.to, from, h.notExecuted.reason == retryAsk
	}
}

// add adds a hit of req that no node has executed. at is its index in the whole request.
func (l *remainder) add(req *counter.Request, h *counter.Hit, at int, why retryReason) {
	l.req.Now, l.req.Stop = req.Now, req.Stop
	l.req.Hits, l.at = append(l.req.Hits, *h), append(l.at, at)
	l.to, l.from, l.asking = append(l.to, ""), append(l.from, ""), append(l.asking, false)
	l.reason = max(l.reason, why)
}

// deliver copies the answers to the whole request.
func (l *remainder) deliver(req *counter.Request) {
	for i, at := range l.at {
		req.Hits[at].TakeAnswer(&l.req.Hits[i])
	}
}

// errLater is the error for a caller whose deadline passes before the server can execute the hits.
var errLater = fmt.Errorf("%w: it refuses hits at present", counter.ErrUnavailable)

// pause waits before the nth retry, for 5 ms at first and up to 50 ms. If the caller's deadline would pass during the
// wait, pause returns an error at once.
func pause(ctx context.Context, n int) error {
	d := min(5*time.Millisecond<<min(n, 4), 50*time.Millisecond)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d+link.LeaveBefore {
		return errLater
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return link.ContextError(ctx)
	}
}

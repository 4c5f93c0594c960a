package redis

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter/link"
)

// access is how the servers of one kind are reached and entered: those of a store, or its sentinels.
type access struct {
	dialer         link.Dialer
	user, password string
	db             int
	clock          func() int64 // as Options.Clock
}

// client makes rueidis speak to one server over one connection, which dial opens, again after each loss.
//
// One command or batch is under way at a time, so that rueidis writes and reads in the caller's
// goroutine and needs none of its own; that is also why its timer for PINGs is off.
func (a *access) client(addr string, dial func(context.Context) (net.Conn, error)) (rueidis.Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr},
		Username:    a.user,
		Password:    a.password,
		SelectDB:    a.db,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
		// its pings off; dial sets the socket's
		Dialer:              net.Dialer{Timeout: a.dialer.Timeout, KeepAlive: -1},
		ConnWriteTimeout:    a.dialer.Timeout,
		ForceSingleClient:   true,
		AlwaysRESP2:         true,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1,
		BlockingPipeline:    1 << 30, // never: it would take another connection
		BlockingPoolSize:    1,
		RingScaleEachConn:   4, // a ring of 16: there is one sender
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
	})
	if err != nil && c != nil {
		c.Close()
	}
	return c, err
}

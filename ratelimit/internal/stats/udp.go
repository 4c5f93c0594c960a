package stats

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cactus/go-statsd-client/v5/statsd"
)

const (
	// udpPacket fits an Ethernet frame with all headers.
	udpPacket = 1432
	// udpResolve is how often a name is looked up again.
	udpResolve = 30 * time.Second
	udpRetry   = 3 * time.Second
)

// udp packs lines into datagrams for the client library's sender. It resolves the server's name in the background,
// since the name may not resolve at first.
type udp struct {
	sender atomic.Pointer[statsd.Sender]
	stop   context.CancelFunc
	done   chan struct{}
	packet []byte // used by the flusher only
}

func newUDP(addr string, log *slog.Logger) *udp {
	ctx, stop := context.WithCancel(context.Background())
	u := &udp{stop: stop, done: make(chan struct{}), packet: make([]byte, 0, udpPacket)}
	go func() {
		defer close(u.done)
		for told := false; ; told = true {
			sender, err := statsd.NewResolvingSimpleSender(addr, udpResolve)
			if err == nil {
				u.sender.Store(&sender)
				return
			}
			if !told {
				log.Warn("stats: statsd's address does not resolve; counts are kept, times are not", "address", addr,
					"retry", udpRetry, "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(udpRetry):
			}
		}
	}()
	return u
}

func (u *udp) ready() bool { return u.sender.Load() != nil }

// awake returns ready: a name that has not resolved for minutes does not resolve now.
func (u *udp) awake(context.Context) bool { return u.ready() }

// Send implements statsd.Sender. An error means that this line was not taken; the lines of a datagram that the kernel
// refuses are lost.
func (u *udp) Send(line []byte) (int, error) {
	if !u.ready() {
		return 0, errAway
	}
	if len(u.packet) > 0 && len(u.packet)+len(line) >= udpPacket {
		if err := u.send(); err != nil {
			return 0, err
		}
	}
	u.packet = append(append(u.packet, line...), '\n')
	return len(line), nil
}

func (u *udp) send() error {
	_, err := (*u.sender.Load()).Send(u.packet)
	u.packet = u.packet[:0]
	return err
}

func (u *udp) flush() {
	if len(u.packet) > 0 && u.ready() {
		u.send()
	}
}

// Close implements statsd.Sender.
func (u *udp) Close() error { return u.drain(context.Background()) }

func (u *udp) drain(ctx context.Context) error {
	u.flush()
	u.stop()
	select {
	case <-u.done:
	case <-ctx.Done(): // still resolving: the system's resolver takes no context
		return ctx.Err()
	}
	if s := u.sender.Load(); s != nil {
		return (*s).Close()
	}
	return nil
}

package redis

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter/link"
)

// sentinels finds the address of a Server's master. It subscribes to +switch-master, by which one sentinel announces
// failovers. It also queries all sentinels at intervals of refreshEvery, and whenever the server fails.
//
// The sentinel client of rueidis is not suitable: it trusts a single sentinel, each of its connections has a
// subscription of its own, and it does not report a change of the master. So nothing would drop the batches that wait
// for a master that hangs.
type sentinels struct {
	name  string
	addrs []string
	a     *access
	log   *slog.Logger

	master  atomic.Pointer[link.Endpoint]
	changed func() // called when the address of the master has changed
	epoch   int64  // configuration epoch of the present master; only ask uses it, which one goroutine calls at a time

	kick chan struct{} // a value requests a query of all sentinels
	wg   sync.WaitGroup
}

// newSentinel returns a Server for the master that sentinels name, and connects to it as NewServer does.
func newSentinel(ctx context.Context, o Options) (*Server, error) {
	t, err := o.Settings.target()
	if err != nil {
		return nil, err
	}
	s := newServer(o)
	as := target{}
	as.user, as.password = credentials(o.Settings.SentinelAuth)
	find := &sentinels{
		name: t.master, addrs: t.addrs, log: s.o.Log, kick: make(chan struct{}, 1),
		a: s.o.access(as, min(s.o.Settings.Timeout, time.Second), nil),
	}
	find.master.Store(&link.Endpoint{}) // empty until the first query
	find.changed = s.relocated
	s.at(t, func() link.Endpoint { return *find.master.Load() }, masterServer)
	if err := reach(ctx, s.o, find.ask); err != nil {
		s.stop()
		return nil, err
	}
	s.trouble = find.trouble
	s.wg.Go(func() { find.watch(s.ctx, s.Open) })
	s.wg.Go(func() { find.listen(s.ctx) })
	if err := s.open(ctx); err != nil {
		s.wg.Wait()
		return nil, err
	}
	return s, nil
}

// trouble requests a query of all sentinels.
func (f *sentinels) trouble() { kick(f.kick) }

// watch queries the sentinels every refreshEvery, and every refreshSoon while a query fails or the master is lost.
func (f *sentinels) watch(ctx context.Context, lost func() bool) {
	defer f.wg.Wait()
	refreshing(ctx, f.kick, func() (soon bool) { return f.ask(ctx) != nil || lost() })
}

// ask queries all sentinels, and takes the master with the highest configuration epoch, since a sentinel that was cut
// off from the others may not know of a failover. A master with a lower epoch than the present master's is taken only
// if all sentinels have answered, so that none of them names the present master any longer.
func (f *sentinels) ask(ctx context.Context) error {
	best := named{epoch: -1}
	var failure error
	answers := askEach(ctx, &f.wg, f.addrs, "sentinel ", f.askOne)
	for range f.addrs {
		a := <-answers
		if failure = errors.Join(failure, a.err); a.err == nil && a.said.epoch > best.epoch {
			best = a.said
		}
		if best.epoch > f.epoch { // a newer master is taken at once, since other sentinels may answer late or never
			f.epoch = best.epoch
			f.set(best.master)
		}
	}
	if best.epoch < 0 {
		return failure
	}
	if best.epoch < f.epoch && failure != nil {
		return nil // a sentinel that has not answered may know the present master
	}
	f.epoch = best.epoch
	f.set(best.master) // even if the epoch is the same, in case a message of +switch-master was wrong
	return nil
}

// set records the address of the master. If the address has changed, set calls f.changed.
func (f *sentinels) set(to link.Endpoint) {
	old := f.master.Swap(&to)
	if *old == to || *old == (link.Endpoint{}) {
		return
	}
	f.log.Warn("the key-value store has another master", "name", f.name, "address", to.Addr)
	f.changed()
}

// named is a master that a sentinel has named, with the master's configuration epoch.
type named struct {
	master link.Endpoint
	epoch  int64
}

// askOne queries one sentinel over a new connection. It does not take the address from the reply to SENTINEL MASTER:
// during a failover, the sentinel in charge reports the new epoch with the old address in this reply, until all
// replicas follow the new master.
func (f *sentinels) askOne(ctx context.Context, addr string) (is named, err error) {
	defer recovered(&err)
	replies, err := f.a.once(ctx, addr, func(b rueidis.Builder) []rueidis.Completed {
		return []rueidis.Completed{b.Arbitrary("SENTINEL", "GET-MASTER-ADDR-BY-NAME", f.name).Build(),
			b.Arbitrary("SENTINEL", "MASTER", f.name).Build()}
	})
	if err != nil {
		return is, err
	}
	address, err := replies[0].AsStrSlice()
	switch {
	case rueidis.IsRedisNil(err):
		return is, fmt.Errorf("it knows no master named %q", f.name)
	case err != nil:
		return is, err
	case len(address) != 2:
		return is, errors.New("an answer without the master's address")
	}
	if fields, err := replies[1].AsStrMap(); err == nil { // without the right to this command, the epoch stays 0
		is.epoch, _ = strconv.ParseInt(fields["config-epoch"], 10, 64)
	}
	is.master, err = masterAt(address[0], address[1])
	return is, err
}

func masterAt(host, port string) (link.Endpoint, error) {
	addr := net.JoinHostPort(host, port)
	if _, _, err := net.SplitHostPort(addr); err != nil || host == "" || !link.IsPort(port) {
		return link.Endpoint{}, errors.New("an answer without the master's address")
	}
	return link.Endpoint{Network: "tcp", Addr: addr}, nil
}

// listen subscribes to announcements of failovers at one sentinel. When the connection ends, it tries the next
// sentinel.
func (f *sentinels) listen(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i = (i + 1) % len(f.addrs) {
		f.subscribe(ctx, f.addrs[i]) // the error makes no difference, since watch queries the sentinels anyway
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// subscribe receives the announcements of one sentinel until the connection ends. It does not use rueidis, which would
// read in a goroutine of its own and panic there after a surplus reply. It looks for lines in the form of an
// announcement, and ignores all other lines.
func (f *sentinels) subscribe(ctx context.Context, addr string) error {
	conn, err := f.a.dialer.Dial(ctx, link.Endpoint{Network: "tcp", Addr: addr})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var out []byte
	switch {
	case f.a.user != "":
		out = appendCommand(out, "AUTH", f.a.user, f.a.password)
	case f.a.password != "":
		out = appendCommand(out, "AUTH", f.a.password)
	}
	if _, err := conn.Write(appendCommand(out, "SUBSCRIBE", "+switch-master")); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn) // a Scanner limits the length of a line
	for lines.Scan() {
		if to, ok := switchedTo(lines.Text(), f.name); ok {
			f.set(to)
			f.trouble() // the query finds the new epoch
		} else if bytes.HasPrefix(lines.Bytes(), []byte("-")) {
			return errors.New("the sentinel refuses the subscription")
		}
	}
	return lines.Err()
}

// appendCommand appends a command in Redis' protocol, as an array of strings.
func appendCommand(out []byte, words ...string) []byte {
	out = fmt.Appendf(out, "*%d\r\n", len(words))
	for _, word := range words {
		out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(word), word)
	}
	return out
}

// switchedTo parses an announcement of +switch-master: the master's name, old host, old port, new host and new port. ok
// is false if it is another text, or about another master.
func switchedTo(message, name string) (link.Endpoint, bool) {
	words := strings.Fields(message)
	if len(words) != 5 || words[0] != name {
		return link.Endpoint{}, false
	}
	to, err := masterAt(words[3], words[4])
	return to, err == nil
}

package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter/link"
)

// connection is one connection to a store. One goroutine uses it at a time; only drop may be called concurrently.
type connection interface {
	// send carries out a batch and fills in its answers. It returns an error of the connection; then it is unknown
	// which commands were executed. A command that the store refuses has its own err.
	send(b *batch) error
	// ping sends a PING and waits for its answer.
	ping() error
	// drop closes the connection, so that send returns at once. The next send opens a new connection.
	drop()
	// close closes the connection for good.
	close()
}

// redisLink is a connection to one Redis, by rueidis. The watchdog pings idle connections.
type redisLink struct {
	ctx    context.Context // of the store; its end ends dials
	access *access
	where  func() link.Endpoint // returns the server; called before each dial
	role   role

	client  *client // nil without a connection
	cmds    []rueidis.Completed
	numbers []byte    // digits of the arguments
	again   []int     // indexes of the ops to send once more
	given   []*script // scripts whose text is in the batch

	mu      sync.Mutex // guards the fields below, which drop needs
	conn    net.Conn
	alive   func() bool        // reports whether conn is alive
	cancel  context.CancelFunc // ends a dial
	dropped bool
}

// role is what the server must be, apart from being alive.
type role uint8

const (
	anyServer     role = iota
	masterServer       // the master that sentinels name
	clusterServer      // a node that reports its cluster as healthy
)

// script is a Lua script and its SHA-1.
type script struct{ text, sha string }

// connect opens a connection if there is none. Its error wraps errUnsent: nothing was sent.
func (l *redisLink) connect() error {
	l.mu.Lock()
	// The server may have closed the connection, or sent something unrequested, which would be taken for the next
	// reply.
	gone := l.dropped || l.client != nil && !l.alive()
	l.mu.Unlock()
	if gone {
		l.close()
	}
	if l.client != nil {
		return nil
	}
	l.mu.Lock()
	l.dropped = false
	l.mu.Unlock()
	client, err := l.access.client(l.where().Addr, l.dial)
	if err == nil {
		err = l.load(client)
	}
	if err != nil {
		l.drop()
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	l.client = client
	return nil
}

// load gives the server the scripts, so that batches need not contain their texts. A server that forbids SCRIPT LOAD
// gets the texts in batches, as does a server that has lost the scripts.
func (l *redisLink) load(c *client) error {
	build := c.B()
	cmds := make([]rueidis.Completed, 0, 6)
	for _, s := range l.scripts() {
		cmds = append(cmds, build.ScriptLoad().Script(s.text).Build())
	}
	replies, err := c.do(cmds...)
	if err == nil {
		err = replies[0].NonRedisError()
	}
	return err
}

// scripts returns the scripts that batches call by SHA-1.
func (l *redisLink) scripts() []*script {
	clock := l.access.clock
	all := []*script{stopLua, slidingScript.pick(clock), bucketScript.pick(clock), stopMetersScript.pick(clock)}
	if l.role == clusterServer {
		all = append(all, stopClusterLua, stopMetersClusterScript.pick(clock))
	}
	return all
}

// close closes the connection. connect opens a new one.
func (l *redisLink) close() {
	l.drop()
	l.client = nil
}

// dial opens the connection; rueidis calls it.
func (l *redisLink) dial(context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	l.mu.Lock()
	l.cancel = cancel
	l.mu.Unlock()
	conn, err := l.access.dialer.Dial(ctx, l.where())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = nil
	if err != nil {
		return nil, err
	}
	if l.dropped {
		conn.Close() // it may lead to a former address of the server
		return nil, net.ErrClosed
	}
	l.conn, l.alive = conn, link.Aliveness(conn)
	return conn, nil
}

func (l *redisLink) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped = true
	if l.cancel != nil {
		l.cancel()
	}
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

func (l *redisLink) ping() (err error) {
	defer recovered(&err)
	if err := l.connect(); err != nil {
		return err
	}
	build := l.client.B()
	cmds := []rueidis.Completed{build.Ping().Build()}
	switch l.role {
	case masterServer:
		cmds = append(cmds, build.Role().Build())
	case clusterServer:
		cmds = append(cmds, build.ClusterInfo().Build())
	}
	timed, sent := l.access.skew != nil && l.access.skew.due(), time.Now()
	if timed {
		cmds = append(cmds, build.Time().Build())
	}
	replies, err := l.client.do(cmds...)
	if err == nil {
		err = replies[0].NonRedisError()
	}
	if err != nil {
		l.close()
		return err
	}
	if err := replies[0].Error(); err != nil {
		return err
	}
	if timed {
		l.access.skew.take(l.where().Addr, replies[len(replies)-1], sent)
		replies = replies[:len(replies)-1]
	}
	return l.role.check(replies[len(replies)-1])
}

// check returns what is wrong with a server that answers. A server that forbids the query is accepted.
func (as role) check(r rueidis.RedisResult) error {
	switch as {
	case masterServer:
		if fields, err := r.ToArray(); err == nil && len(fields) > 0 {
			if what, err := fields[0].ToString(); err == nil && what != "master" {
				return fmt.Errorf("it is a %s, not the master", what)
			}
		}
	case clusterServer:
		if info, err := r.ToString(); err == nil && strings.Contains(info, "cluster_state:fail") {
			return errors.New("the cluster is down, the node says")
		}
	}
	return nil
}

const (
	// skewEvery is how often a server's clock is read.
	skewEvery = 10 * time.Second
	// skewSlowest is the longest that a reading may take: its error is up to half of that.
	skewSlowest = 100 * time.Millisecond
	// skewWarns is the difference from which a warning is logged.
	skewWarns = 200 * time.Millisecond
)

// skew compares this machine's clock, which decides fixed windows, with a server's, on connections that are pinged. It
// needs no right: after a server has refused TIME, skew does not send it again.
type skew struct {
	report func(server string, offset time.Duration) // as Options.Skew
	log    *slog.Logger

	mu      sync.Mutex
	last    time.Time // when a server's clock was last read
	warned  time.Time
	refused bool
}

// due reports whether the clock is to be read now.
func (s *skew) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report != nil && !s.refused && (s.last.IsZero() || time.Since(s.last) >= skewEvery)
}

// ahead returns how far a machine's time is ahead of an answer to TIME: seconds and microseconds.
func ahead(at time.Time, there []int64) time.Duration {
	return at.Round(0).Sub(time.Unix(there[0], there[1]*1000))
}

// take takes the answer to a TIME that was sent at sent.
func (s *skew) take(server string, r rueidis.RedisResult, sent time.Time) {
	took := time.Since(sent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	if _, is := rueidis.IsRedisErr(r.Error()); is {
		s.refused = true
		s.log.Info("the key-value store does not tell its time: that clocks differ goes unseen (ACL: +time)")
		return
	}
	parts, err := r.AsIntSlice()
	if err != nil || len(parts) != 2 || took > skewSlowest {
		return
	}
	offset := ahead(sent.Add(took/2), parts)
	s.report(server, offset)
	if offset.Abs() > skewWarns && (s.warned.IsZero() || time.Since(s.warned) >= time.Hour) {
		s.warned = time.Now()
		s.log.Warn("this machine's clock differs from the key-value store's: near the edges of windows hits are counted "+
			"in others than those of replicas whose clocks are right", "ahead", offset.Round(time.Millisecond))
	}
}

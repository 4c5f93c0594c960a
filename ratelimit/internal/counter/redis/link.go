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

// connection is one connection to a server. Only one goroutine may use it at a time, except for drop.
type connection interface {
	// send has the server carry out a batch, and fills in the replies. An error is one of the connection; it is then
	// unknown which commands were executed. The error of a single command that the server has refused is the op's err.
	send(b *batch) error
	// ping sends a PING and waits for the reply.
	ping() error
	// drop closes the connection, so that a send in progress returns at once. The next send opens a new connection.
	drop()
	// close closes the connection for good.
	close()
}

// redisLink is the connection to a Redis, by means of rueidis. While it is idle, the watchdog has it pinged.
type redisLink struct {
	ctx    context.Context // the store's; when it ends, so does a dial in progress
	access *access
	where  func() link.Endpoint // returns the server's address; called before each dial
	role   role

	client  *client // nil if there is no connection
	cmds    []rueidis.Completed
	numbers []byte    // the digits of arguments in cmds
	again   []int     // the indexes of the ops for which sendAgain sends a command
	given   []*script // the scripts that the batch has as text

	mu      sync.Mutex // guards the fields below, which drop uses
	conn    net.Conn
	alive   func() bool        // reports whether conn is open and has no unread bytes
	cancel  context.CancelFunc // ends a dial in progress
	dropped bool
}

// role says what a server must be before hits are sent to it, in addition to being reachable.
type role uint8

const (
	anyServer     role = iota
	masterServer       // the master, as sentinels have named it
	clusterServer      // a node that reports its cluster as healthy
)

// script is a Lua script and its SHA-1, by which it can be called.
type script struct{ text, sha string }

// connect opens a connection if there is none. Its error wraps errUnsent, since nothing was sent.
func (l *redisLink) connect() error {
	l.mu.Lock()
	// The server may have closed the connection, or sent bytes that were not requested and would be taken for the next
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

// load sends the scripts to the server, so that batches can name the scripts instead of containing their texts. If the
// server forbids SCRIPT LOAD, or loses the scripts later, batches contain the texts.
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

// scripts returns the scripts that batches call by their SHA-1.
func (l *redisLink) scripts() []*script {
	clock := l.access.clock
	all := []*script{stopLua, slidingScript.pick(clock), bucketScript.pick(clock), stopMetersScript.pick(clock)}
	if l.role == clusterServer {
		all = append(all, stopClusterLua, stopMetersClusterScript.pick(clock))
	}
	return all
}

// close closes the connection. A later connect opens a new one.
func (l *redisLink) close() {
	l.drop()
	l.client = nil
}

// dial opens the connection, and is called by rueidis.
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
		conn.Close() // dropped meanwhile: it may lead to a former address of the server
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

// check returns what is wrong with a server that replies but does not have the role as. r is the reply to the query for
// the role; a server that has refused this query is accepted.
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
	// skewEvery is how often the server's clock is read.
	skewEvery = 10 * time.Second
	// skewSlowest is how long the server may take to tell its time; slower replies are not used. The result can be
	// wrong by half of that time.
	skewSlowest = 100 * time.Millisecond
	// skewWarns is the difference between the clocks above which a warning is logged.
	skewWarns = 200 * time.Millisecond
)

// skew compares this machine's clock, by which fixed windows begin and end, with a server's. It sends the command TIME
// together with PINGs. The user of the server need not have the right to TIME: after the server has refused TIME, skew
// does not send it again.
type skew struct {
	report func(server string, offset time.Duration) // see Options.Skew
	log    *slog.Logger

	mu      sync.Mutex
	last    time.Time // when the server's clock was last read
	warned  time.Time
	refused bool
}

// due reports whether the server's clock is to be read now.
func (s *skew) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report != nil && !s.refused && (s.last.IsZero() || time.Since(s.last) >= skewEvery)
}

// ahead returns by how much this machine's clock, which shows at, is ahead of a server's. there is the server's reply
// to TIME: seconds and microseconds.
func ahead(at time.Time, there []int64) time.Duration {
	return at.Round(0).Sub(time.Unix(there[0], there[1]*1000))
}

// take handles the reply r of a server to the command TIME, which was sent at the instant in sent.
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

package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// connection is one connection to a store. One goroutine uses it at a time; only drop may be called concurrently.
type connection interface {
	// send carries out a batch and fills in its answers. An error is one of the link: nothing is
	// known about any command. A command that the store refuses has its own err.
	send(b *batch) error
	// ping sends a PING and waits for its answer.
	ping() error
	// drop breaks the connection off, so that send returns at once. The next send makes a new one.
	drop()
	// close ends it for good.
	close()
}

// redisLink speaks to one Redis over one connection of rueidis. Idle ones are pinged by the watchdog.
type redisLink struct {
	ctx    context.Context // of the store: ends dials when it closes
	access *access
	where  func() link.Endpoint // the server, called before each dial
	role   role

	client  *client // nil without a connection
	cmds    []rueidis.Completed
	numbers []byte    // digits of the arguments
	again   []int     // commands to send once more
	given   []*script // whose text is in the batch

	mu      sync.Mutex // guards what drop needs
	conn    net.Conn
	alive   func() bool        // of conn
	cancel  context.CancelFunc // ends a dial under way
	dropped bool
}

// role is what the server must be besides alive.
type role uint8

const (
	anyServer     role = iota
	masterServer       // of sentinels
	clusterServer      // a node that reports its cluster as healthy
)

// script is a Lua script and its SHA-1.
type script struct{ text, sha string }

// connect sees to a connection. Its error wraps errUnsent: whatever was to be sent is not.
func (l *redisLink) connect() error {
	l.mu.Lock()
	// The server may have closed it, or said something out of turn, for which the next reply would be taken.
	gone := l.dropped || l.client != nil && !l.alive()
	l.mu.Unlock()
	if gone {
		l.disconnect()
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

// load gives the server the scripts, so that it need not be told a text within a batch. One that forbids it gets texts
// all the same, as one that has lost them.
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

// scripts are those that batches call by their SHA-1.
func (l *redisLink) scripts() []*script {
	clock := l.access.clock
	all := []*script{stopLua, slidingScript.pick(clock), bucketScript.pick(clock), stopMetersScript.pick(clock)}
	if l.role == clusterServer {
		all = append(all, stopClusterLua, stopMetersClusterScript.pick(clock))
	}
	return all
}

// disconnect drops the connection, so that connect makes a new one.
func (l *redisLink) disconnect() {
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
		conn.Close() // it may lead where the server no longer is
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

func (l *redisLink) close() { l.disconnect() }

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
		l.disconnect()
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

// check reports what is wrong with a server that answers. One that forbids the query is accepted.
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

func (l *redisLink) send(b *batch) error {
	if len(b.ops) == 0 {
		return nil
	}
	if err := l.connect(); err != nil {
		return err
	}
	err := l.exchange(b)
	if err != nil {
		// The commands may still be in rueidis' hands; they must not share our memory any more.
		l.numbers, l.cmds = nil, nil
		l.disconnect()
	}
	return err
}

// exchange sends a batch over the connection and takes its answers.
func (l *redisLink) exchange(b *batch) (err error) {
	defer recovered(&err)
	l.cmds, l.numbers, l.again = l.cmds[:0], l.numbers[:0], l.again[:0]
	l.given = l.given[:0]
	for i := range b.ops {
		l.append(b, &b.ops[i])
	}
	// Without a deadline: it would close the connection under everybody, and the hits count all the same.
	replies, err := l.client.do(l.cmds...)
	if err == nil {
		err = l.readAll(b, replies)
	}
	if err == nil && len(l.again) > 0 {
		err = l.sendAgain(b)
	}
	return err
}

// readAll takes the answers to all commands of a batch.
func (l *redisLink) readAll(b *batch, replies []rueidis.RedisResult) error {
	for i := range b.ops {
		o := &b.ops[i]
		if o.asking {
			replies = replies[1:]
		}
		if o.fresh {
			if err := replies[0].NonRedisError(); err != nil {
				return err
			}
			// Whether the key was new does not matter, but a refusal does: a user may have no right to SET.
			if _, refused := rueidis.IsRedisErr(replies[0].Error()); refused {
				o.fresh = false
			}
			replies = replies[1:]
			if o.asking {
				replies = replies[1:]
			}
		}
		again, err := l.read(b, o, replies[0])
		if err != nil {
			return err
		}
		if again {
			l.again = append(l.again, i)
		}
		replies = replies[1:]
	}
	return nil
}

// append adds the commands of one op. Arguments that are no part of the literal point into the call
// or into l.numbers, both of which stay as they are until the answer.
func (l *redisLink) append(b *batch, o *op) {
	build := l.client.B()
	l.ask(o)
	switch {
	case o.kind == opStop:
		l.cmds = append(l.cmds, l.evalStop(b, o))
	case o.kind == opMeter:
		l.cmds = append(l.cmds, l.evalMeter(b, o))
	case o.kind == opRefund:
		// By its text: hits of the key, behind, do not wait for a second try.
		l.cmds = append(l.cmds, build.Arbitrary("EVAL", refundScript, "1", o.key).Args(l.decimal(o.n)).Build())
	case o.kind == opDelete:
		l.cmds = append(l.cmds, build.Arbitrary("DEL", o.key).Build())
	case o.n == 0:
		l.cmds = append(l.cmds, build.Arbitrary("GET", o.key).Build())
	default:
		// Not Keys, which also works out the cluster slot.
		if o.fresh {
			l.cmds = append(l.cmds, build.Arbitrary("SET", o.key, "0", "EX", l.decimal(b.ttl(o)), "NX").Build())
			l.ask(o)
		}
		l.cmds = append(l.cmds, build.Arbitrary("INCRBY", o.key, l.decimal(o.n)).Build())
	}
}

// ask adds ASKING, which holds for one command, where the next one needs it.
func (l *redisLink) ask(o *op) {
	if o.asking {
		l.cmds = append(l.cmds, l.client.B().Asking().Build())
	}
}

// stopper is the script for an opStop.
func (l *redisLink) stopper(o *op) *script {
	across := l.role == clusterServer && len(o.stop.hits) > 1
	switch {
	case across && o.stop.meters:
		return stopMetersClusterScript.pick(l.access.clock)
	case across:
		return stopClusterLua
	case o.stop.meters:
		return stopMetersScript.pick(l.access.clock)
	}
	return stopLua
}

// call returns how a script is called: by its SHA-1 where the server has it, or by its text, which it then has.
func (l *redisLink) call(b *batch, s *script) (how, script string) {
	if !b.ordered || slices.Contains(l.given, s) {
		return "EVALSHA", s.sha
	}
	l.given = append(l.given, s)
	return "EVAL", s.text
}

// evalStop is the call of an opStop's script.
func (l *redisLink) evalStop(b *batch, o *op) rueidis.Completed {
	build := l.client.B()
	how, script := l.call(b, l.stopper(o))
	args := o.stopArgs(b.jitter)
	if l.role == clusterServer && len(o.stop.hits) > 1 {
		for i := range o.stop.hits[1:] {
			args = append(args, string(o.stop.hits[1+i].Key))
		}
		return build.Arbitrary(how, script, "1", string(o.stop.hits[0].Key)).Args(l.timed(o, args)...).Build()
	}
	c := build.Arbitrary(how, script, strconv.Itoa(len(o.stop.hits)))
	for i := range o.stop.hits {
		c = c.Args(string(o.stop.hits[i].Key))
	}
	return c.Args(l.timed(o, args)...).Build()
}

// timed adds the instant where the script takes it as an argument.
func (l *redisLink) timed(o *op, args []string) []string {
	if o.stop.meters && l.access.clock != nil {
		args = append(args, l.decimal(l.access.clock()))
	}
	return args
}

// read takes one command's answer. again: it must be sent in another form, or is followed by an EXPIRE.
func (l *redisLink) read(b *batch, o *op, r rueidis.RedisResult) (again bool, err error) {
	if err := r.NonRedisError(); err != nil {
		return false, err
	}
	switch {
	case o.kind == opStop:
		err = o.readStop(r)
	case o.kind == opMeter:
		err = b.meters[o.meter].read(r)
	case o.kind == opRefund:
		o.base, err = r.AsInt64()
	case o.kind == opDelete:
		_, err = r.ToInt64() // how many there were
		// It may have come between the SET and the INCRBY of a first hit, whose key has no expiry then.
		again = err == nil && o.first.Algorithm == counter.FixedWindow
	case o.n == 0:
		if o.base, err = r.AsInt64(); rueidis.IsRedisNil(err) {
			o.base, err = 0, nil
		}
	default:
		var after int64
		after, err = r.ToInt64()
		o.base = after - o.n
		again = err == nil && o.base == 0 && !o.fresh // we made the key, and it has no expiry
	}
	if err == nil {
		return again, nil
	}
	if e, ok := rueidis.IsRedisErr(err); ok && o.readsClock() {
		return l.readScriptError(b, o, e)
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		o.overflowed = o.kind == opCount && strings.Contains(e.Error(), "overflow")
		if o.overflowed || e.IsNoScript() {
			return true, nil
		}
		if l.refusal(b, o, e.Error()); o.notExecuted != nil {
			return false, nil
		}
	}
	// Not the text of the answer: it may name keys or users.
	o.err = fmt.Errorf("%w: the store refused a command: %s", counter.ErrUnavailable, errorCode(err))
	return false, nil
}

func (o *op) readStop(r rueidis.RedisResult) error {
	out, err := r.ToArray()
	if err != nil {
		return err
	}
	o.stop.was = o.stop.was[:0]
	for i := range out {
		if i == 0 {
			held, err := out[0].AsInt64()
			if err != nil {
				return err
			}
			o.stop.held = held == 1
			continue
		}
		if i == 1 && o.stop.meters {
			if o.stop.now, err = out[1].AsInt64(); err != nil {
				return err
			}
			continue
		}
		total, err := out[i].ToString()
		if err != nil {
			return err
		}
		o.stop.was = append(o.stop.was, total)
	}
	return nil
}

// sendAgain sends what follows from the answers: the expiry of keys that came without one or may have, scripts the
// store did not know, and the top value for counters that would have passed it.
func (l *redisLink) sendAgain(b *batch) error {
	l.cmds, l.given = l.cmds[:0], l.given[:0]
	b.ordered = true // the server needs the text of each script once
	build := l.client.B()
	for _, i := range l.again {
		o := &b.ops[i]
		l.ask(o)
		switch {
		case o.kind == opStop:
			l.cmds = append(l.cmds, l.evalStop(b, o))
		case o.kind == opMeter:
			l.cmds = append(l.cmds, l.evalMeter(b, o))
		case o.overflowed:
			// SETRANGE keeps the expiry, unlike SET.
			l.cmds = append(l.cmds, build.Arbitrary("GET").Args(o.key).Build())
			l.ask(o)
			l.cmds = append(l.cmds, build.Arbitrary("SETRANGE").Args(o.key, "0", maxTotal).Build())
		default:
			l.cmds = append(l.cmds, build.Arbitrary("EXPIRE", o.key, l.decimal(b.ttl(o))).Build())
		}
	}
	replies, err := l.client.do(l.cmds...)
	if err != nil {
		return err
	}
	for _, i := range l.again {
		o := &b.ops[i]
		if o.asking {
			replies = replies[1:]
		}
		if err := replies[0].NonRedisError(); err != nil {
			return err
		}
		switch {
		case o.kind == opDelete: // EXPIRE, mostly of no key
		case o.kind != opCount:
			again, err := l.read(b, o, replies[0])
			if err != nil {
				return err
			}
			if again {
				o.notExecuted = &notNow // the script is lost again
			}
		case o.overflowed:
			base, err := replies[0].AsInt64()
			if err != nil {
				o.err = fmt.Errorf("%w: the store refused a command: %s", counter.ErrUnavailable, errorCode(err))
			}
			o.base = base
			replies = replies[1:]
			if o.asking {
				replies = replies[1:]
			}
		}
		replies = replies[1:]
	}
	return nil
}

// decimal is n as text, in memory that lives as long as the batch.
func (l *redisLink) decimal(n int64) string {
	if n < 100 {
		return strconv.FormatInt(n, 10) // one of the ready-made
	}
	start := len(l.numbers)
	l.numbers = strconv.AppendInt(l.numbers, n, 10)
	return unsafe.String(&l.numbers[start], len(l.numbers)-start)
}

// errorCode is the first word of a Redis error, such as NOAUTH or LOADING.
func errorCode(err error) string {
	code, _, _ := strings.Cut(err.Error(), " ")
	return code
}

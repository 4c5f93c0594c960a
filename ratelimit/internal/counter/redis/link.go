package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
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

	client  rueidis.Client // nil without a connection
	used    time.Time      // when something was last sent
	cmds    []rueidis.Completed
	numbers []byte // digits of the arguments
	again   []int  // commands to send once more

	mu      sync.Mutex // guards what drop needs
	conn    net.Conn
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

func newRedisLink(ctx context.Context, a *access, where func() link.Endpoint, as role) *redisLink {
	return &redisLink{ctx: ctx, access: a, where: where, role: as}
}

// rested is the idle time after which a connection is checked before use: the server may have closed it.
const rested = 10 * time.Millisecond

// connect sees to a connection. Its error wraps errUnsent: whatever was to be sent is not.
func (l *redisLink) connect() error {
	now := time.Now()
	l.mu.Lock()
	gone := l.dropped || l.client != nil && now.Sub(l.used) > rested && !link.Alive(l.conn)
	l.mu.Unlock()
	if l.used = now; gone {
		l.disconnect()
	}
	if l.client != nil {
		return nil
	}
	l.mu.Lock()
	l.dropped = false
	l.mu.Unlock()
	client, err := l.access.client(l.where().Addr, l.dial)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	l.client = client
	return nil
}

// disconnect drops the connection, so that connect makes a new one.
func (l *redisLink) disconnect() {
	l.drop() // else rueidis sends a farewell to a server that may not answer
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
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
	l.conn = conn
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

func (l *redisLink) ping() error {
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
	replies := l.client.DoMulti(context.Background(), cmds...)
	for _, r := range replies {
		if err := r.NonRedisError(); err != nil {
			l.disconnect()
			return err
		}
	}
	if err := replies[0].Error(); err != nil {
		return err
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
	l.cmds, l.numbers, l.again = l.cmds[:0], l.numbers[:0], l.again[:0]
	for i := range b.ops {
		l.append(b, &b.ops[i])
	}
	// Without a deadline: it would close the connection under everybody, and the hits count all the same.
	replies := l.client.DoMulti(context.Background(), l.cmds...)
	err := l.readAll(b, replies)
	if err == nil && len(l.again) > 0 {
		err = l.sendAgain(b)
	}
	if err != nil {
		// The commands may still be in rueidis' hands; they must not share our memory any more.
		l.numbers, l.cmds = nil, nil
		l.disconnect()
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
		l.cmds = append(l.cmds, l.eval(b, o, "EVALSHA", l.stopper(o).sha))
	case o.kind == opMeter:
		l.cmds = append(l.cmds, l.evalMeter(b, o, "EVALSHA", b.meters[o.meter].script().pick(l.access.clock).sha))
	case o.kind == opRefund:
		l.cmds = append(l.cmds, l.eval(b, o, "EVALSHA", refundLua.sha))
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

// eval is the script's call, by its SHA-1 or by its text.
func (l *redisLink) eval(b *batch, o *op, how, script string) rueidis.Completed {
	build := l.client.B()
	if o.kind == opRefund {
		return build.Arbitrary(how, script, "1", o.key).Args(strconv.FormatInt(o.n, 10)).Build()
	}
	args := o.stopArgs(b.jitter)
	if l.role == clusterServer && len(o.stop.hits) > 1 {
		for i := range o.stop.hits[1:] {
			args = append(args, string(o.stop.hits[1+i].key))
		}
		return build.Arbitrary(how, script, "1", string(o.stop.hits[0].key)).Args(l.timed(o, args)...).Build()
	}
	c := build.Arbitrary(how, script, strconv.Itoa(len(o.stop.hits)))
	for i := range o.stop.hits {
		c = c.Args(string(o.stop.hits[i].key))
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
		again = err == nil && o.first.algorithm == counter.FixedWindow
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
	l.cmds = l.cmds[:0]
	build := l.client.B()
	var told [counter.TokenBucket + 1]bool
	for _, i := range l.again {
		o := &b.ops[i]
		l.ask(o)
		switch {
		case o.kind == opStop:
			l.cmds = append(l.cmds, l.eval(b, o, "EVAL", l.stopper(o).text))
		case o.kind == opMeter:
			// The first of a batch gives the server the script's text.
			how, script := "EVALSHA", b.meters[o.meter].script().pick(l.access.clock)
			text := script.sha
			if first := b.meters[o.meter].meter.Algorithm; !told[first] {
				how, text, told[first] = "EVAL", script.text, true
			}
			l.cmds = append(l.cmds, l.evalMeter(b, o, how, text))
		case o.kind == opRefund:
			l.cmds = append(l.cmds, l.eval(b, o, "EVAL", refundLua.text))
		case o.overflowed:
			// SETRANGE keeps the expiry, unlike SET.
			l.cmds = append(l.cmds, build.Arbitrary("GET").Args(o.key).Build())
			l.ask(o)
			l.cmds = append(l.cmds, build.Arbitrary("SETRANGE").Args(o.key, "0", maxTotal).Build())
		default:
			l.cmds = append(l.cmds, build.Arbitrary("EXPIRE", o.key, l.decimal(b.ttl(o))).Build())
		}
	}
	replies := l.client.DoMulti(context.Background(), l.cmds...)
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
				o.err = fmt.Errorf("%w: the store knows no scripts", counter.ErrUnavailable)
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

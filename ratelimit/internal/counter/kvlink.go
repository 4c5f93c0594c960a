package counter

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/redis/rueidis"
)

// link is one connection to a store. One goroutine uses it at a time; only drop may be called beside it.
type link interface {
	// send carries out a batch and fills in its answers. An error is one of the link: nothing is
	// known about any command. A command that the store refuses has its own err.
	send(b *batch) error
	// ping asks for a sign of life.
	ping() error
	// drop breaks the connection off, so that send returns at once. The next send makes a new one.
	drop()
	// close ends it for good.
	close()
}

// poolStats are the connection figures of spec 7.2.
type poolStats struct{ active, total, localClose atomic.Int64 }

// redisLink speaks to one Redis over one connection of rueidis. Idle ones are pinged by the keeper.
type redisLink struct {
	ctx    context.Context // of the store: ends dials when it closes
	dialer *dialer
	where  func() endpoint // the server, asked before each dial

	client  rueidis.Client // nil until the first use
	cmds    []rueidis.Completed
	numbers []byte // digits of the arguments
	again   []int  // commands to send once more
	refund  *script
	stopper *script

	mu     sync.Mutex // guards what drop needs
	conn   net.Conn
	cancel context.CancelFunc // ends a dial under way
}

// script is a Lua script and its SHA-1.
type script struct{ text, sha string }

func newRedisLink(ctx context.Context, d *dialer, where func() endpoint) *redisLink {
	return &redisLink{ctx: ctx, dialer: d, where: where, refund: refundLua, stopper: stopLua}
}

func (l *redisLink) connect() (err error) {
	if l.client == nil {
		l.client, err = l.dialer.client(l.where().addr, l.dial)
		if err != nil {
			l.client = nil
		}
	}
	return err
}

// dial opens the connection; rueidis asks for it, again after each loss.
func (l *redisLink) dial(context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	l.mu.Lock()
	l.cancel = cancel
	l.mu.Unlock()
	conn, err := l.dialer.dial(ctx, l.where())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = nil
	if err != nil {
		return nil, err
	}
	l.conn = conn
	return conn, nil
}

func (l *redisLink) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel()
	}
	if l.conn != nil {
		l.conn.Close()
	}
}

func (l *redisLink) close() {
	l.drop() // else rueidis says goodbye to a server that may be silent
	if l.client != nil {
		l.client.Close()
	}
}

func (l *redisLink) ping() error {
	if err := l.connect(); err != nil {
		return err
	}
	return l.client.Do(context.Background(), l.client.B().Ping().Build()).Error()
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
		l.append(&b.ops[i])
	}
	// Without a deadline: it would close the connection under everybody, and the hits count all the same.
	replies := l.client.DoMulti(context.Background(), l.cmds...)
	next := 0
	for i := range b.ops {
		o := &b.ops[i]
		if o.fresh {
			if err := replies[next].NonRedisError(); err != nil {
				return err
			}
			// Whether the key was new does not matter, but a refusal does: a user may have no right to SET.
			if _, refused := rueidis.IsRedisErr(replies[next].Error()); refused {
				o.fresh = false
			}
			next++
		}
		again, err := o.read(replies[next])
		if err != nil {
			// The commands may still be in rueidis' hands; they must not share our memory any more.
			l.numbers, l.cmds = nil, nil
			return err
		}
		if again {
			l.again = append(l.again, i)
		}
		next++
	}
	if len(l.again) > 0 {
		return l.sendAgain(b)
	}
	return nil
}

// append adds the commands of one op. Arguments that are no part of the literal point into the call
// or into l.numbers, both of which stay as they are until the answer.
func (l *redisLink) append(o *op) {
	build := l.client.B()
	switch {
	case o.kind == opStop:
		l.cmds = append(l.cmds, o.eval(build, "EVALSHA", l.stopper.sha))
	case o.kind == opRefund:
		l.cmds = append(l.cmds, o.eval(build, "EVALSHA", l.refund.sha))
	case o.n == 0:
		l.cmds = append(l.cmds, build.Arbitrary("GET").Args(o.key).Build())
	default:
		// Args and not Keys: that one also works out the cluster slot.
		if o.fresh {
			l.cmds = append(l.cmds, build.Arbitrary("SET").Args(o.key, "0", "EX", l.decimal(o.ttl), "NX").Build())
		}
		l.cmds = append(l.cmds, build.Arbitrary("INCRBY").Args(o.key, l.decimal(o.n)).Build())
	}
}

// eval is the script's call, by its SHA-1 or by its text.
func (o *op) eval(build rueidis.Builder, how, script string) rueidis.Completed {
	if o.kind == opRefund {
		return build.Arbitrary(how, script, "1", o.key).Args(strconv.FormatInt(o.n, 10)).Build()
	}
	c := build.Arbitrary(how, script, strconv.Itoa(len(o.call.hits)))
	for i := range o.call.hits {
		c = c.Args(string(o.call.hits[i].key))
	}
	return c.Args(o.stopArgs()...).Build()
}

// read takes one command's answer. again: it must be sent in another form, or is followed by an EXPIRE.
func (o *op) read(r rueidis.RedisResult) (again bool, err error) {
	if err := r.NonRedisError(); err != nil {
		return false, err
	}
	switch {
	case o.kind == opStop:
		err = o.readStop(r)
	case o.kind == opRefund:
		o.base, err = r.AsInt64()
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
	if e, ok := rueidis.IsRedisErr(err); ok {
		o.overflowed = o.kind == opCount && strings.Contains(e.Error(), "overflow")
		if o.overflowed || e.IsNoScript() {
			return true, nil
		}
	}
	// Not the text of the answer: it may name keys or users.
	o.err = fmt.Errorf("%w: the store refused a command: %s", ErrUnavailable, errorCode(err))
	return false, nil
}

func (o *op) readStop(r rueidis.RedisResult) error {
	out, err := r.ToArray()
	if err != nil {
		return err
	}
	o.was = o.was[:0]
	for i := range out {
		if i == 0 {
			held, err := out[0].AsInt64()
			if err != nil {
				return err
			}
			o.held = held == 1
			continue
		}
		total, err := out[i].ToString()
		if err != nil {
			return err
		}
		o.was = append(o.was, total)
	}
	return nil
}

// sendAgain sends what follows from the answers: the expiry of keys that came without one, scripts the
// store did not know, and the top value for counters that would have passed it.
func (l *redisLink) sendAgain(b *batch) error {
	l.cmds = l.cmds[:0]
	build := l.client.B()
	for _, i := range l.again {
		switch o := &b.ops[i]; {
		case o.kind == opStop:
			l.cmds = append(l.cmds, o.eval(build, "EVAL", l.stopper.text))
		case o.kind == opRefund:
			l.cmds = append(l.cmds, o.eval(build, "EVAL", l.refund.text))
		case o.overflowed:
			// SETRANGE keeps the expiry, unlike SET.
			l.cmds = append(l.cmds, build.Arbitrary("GET").Args(o.key).Build(),
				build.Arbitrary("SETRANGE").Args(o.key, "0", maxTotal).Build())
		default:
			l.cmds = append(l.cmds, build.Arbitrary("EXPIRE").Args(o.key, l.decimal(o.ttl)).Build())
		}
	}
	replies := l.client.DoMulti(context.Background(), l.cmds...)
	next := 0
	for _, i := range l.again {
		o := &b.ops[i]
		if err := replies[next].NonRedisError(); err != nil {
			return err
		}
		switch {
		case o.kind != opCount:
			again, err := o.read(replies[next])
			if err != nil {
				return err
			}
			if again {
				o.err = fmt.Errorf("%w: the store knows no scripts", ErrUnavailable)
			}
		case o.overflowed:
			base, err := replies[next].AsInt64()
			if err != nil {
				o.err = fmt.Errorf("%w: the store refused a command: %s", ErrUnavailable, errorCode(err))
			}
			o.base = base
			next++
		}
		next++
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

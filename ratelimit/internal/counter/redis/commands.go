package redis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
)

func (l *redisLink) send(b *batch) error {
	if len(b.ops) == 0 {
		return nil
	}
	if err := l.connect(); err != nil {
		return err
	}
	err := l.exchange(b)
	if err != nil {
		// rueidis may still use the commands, whose memory must therefore not be reused.
		l.numbers, l.cmds = nil, nil
		l.close()
	}
	return err
}

// exchange sends a batch over the connection and reads the replies.
func (l *redisLink) exchange(b *batch) (err error) {
	defer recovered(&err)
	l.cmds, l.numbers, l.again = l.cmds[:0], l.numbers[:0], l.again[:0]
	l.given = l.given[:0]
	for i := range b.ops {
		l.append(b, &b.ops[i])
	}
	// Set no deadline: a missed deadline would close the connection for all callers, although the server counts the
	// hits all the same.
	replies, err := l.client.do(l.cmds...)
	if err == nil {
		err = l.readAll(b, replies)
	}
	if err == nil && len(l.again) > 0 {
		err = l.sendAgain(b)
	}
	return err
}

// append appends the commands of one op. Their arguments point into the op's call or into l.numbers, and both stay
// unchanged until the replies have arrived.
func (l *redisLink) append(b *batch, o *op) {
	build := l.client.B()
	l.ask(o)
	switch {
	case o.kind == opStop:
		l.cmds = append(l.cmds, l.evalStop(b, o))
	case o.kind == opMeter:
		l.cmds = append(l.cmds, l.evalMeter(b, o))
	case o.kind == opRefund:
		// The script is sent as text. If it were sent by SHA-1 and the server did not have it, it would have to be sent
		// again, after later hits on the same key.
		l.cmds = append(l.cmds, build.Arbitrary("EVAL", refundScript, "1", o.key).Args(l.decimal(o.n)).Build())
	case o.kind == opDelete:
		l.cmds = append(l.cmds, build.Arbitrary("DEL", o.key).Build())
	case o.n == 0:
		l.cmds = append(l.cmds, build.Arbitrary("GET", o.key).Build())
	default:
		// Arbitrary is used without Keys, which would needlessly compute the cluster slot.
		if o.fresh {
			l.cmds = append(l.cmds, build.Arbitrary("SET", o.key, "0", "EX", l.decimal(b.ttl(o)), "NX").Build())
			l.ask(o)
		}
		l.cmds = append(l.cmds, build.Arbitrary("INCRBY", o.key, l.decimal(o.n)).Build())
	}
}

// ask appends ASKING, which applies to one command, if the op's next command needs it.
func (l *redisLink) ask(o *op) {
	if o.asking {
		l.cmds = append(l.cmds, l.client.B().Asking().Build())
	}
}

// call returns the command that calls a script, and the command's first argument. It is EVALSHA with the script's SHA-1
// if the script can be sent again later (the batch is not ordered) or if the batch already has the script as text.
// Otherwise it is EVAL with the text, which makes the server keep the script.
func (l *redisLink) call(b *batch, s *script) (how, script string) {
	if !b.ordered || slices.Contains(l.given, s) {
		return "EVALSHA", s.sha
	}
	l.given = append(l.given, s)
	return "EVAL", s.text
}

// decimal formats n in memory that stays unchanged as long as the batch is in use.
func (l *redisLink) decimal(n int64) string {
	if n < 100 {
		return strconv.FormatInt(n, 10) // does not allocate below 100
	}
	start := len(l.numbers)
	l.numbers = strconv.AppendInt(l.numbers, n, 10)
	return unsafe.String(&l.numbers[start], len(l.numbers)-start)
}

// next removes the reply to the op's next command from replies and returns it. It skips the reply to an ASKING before
// the command.
func (o *op) next(replies *[]rueidis.RedisResult) rueidis.RedisResult {
	at := 0
	if o.asking {
		at = 1
	}
	reply := (*replies)[at]
	*replies = (*replies)[at+1:]
	return reply
}

// readAll reads the replies to all commands of a batch.
func (l *redisLink) readAll(b *batch, replies []rueidis.RedisResult) error {
	for i := range b.ops {
		o := &b.ops[i]
		if o.fresh {
			set := o.next(&replies)
			if err := set.NonRedisError(); err != nil {
				return err
			}
			// It makes no difference whether SET has set the key. But if the server has refused SET, as it does if the
			// user lacks the right to it, the key needs an EXPIRE.
			if _, refused := rueidis.IsRedisErr(set.Error()); refused {
				o.fresh = false
			}
		}
		again, err := l.read(b, o, o.next(&replies))
		if err != nil {
			return err
		}
		if again {
			l.again = append(l.again, i)
		}
	}
	return nil
}

// read reads the reply to the main command of an op. again means that sendAgain has to send a command for the op: in
// another form, or an EXPIRE.
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
		_, err = r.ToInt64() // the reply is the number of keys that were deleted
		// DEL may have come between the SET and the INCRBY of another connection. The key that INCRBY then created has
		// no expiry.
		again = err == nil && o.first.Algorithm == counter.FixedWindow
	case o.n == 0:
		if o.base, err = r.AsInt64(); rueidis.IsRedisNil(err) {
			o.base, err = 0, nil
		}
	default:
		var after int64
		after, err = r.ToInt64()
		o.base = after - o.n
		again = err == nil && o.base == 0 && !o.fresh // the INCRBY has created the key, which has no expiry
	}
	if err == nil {
		return again, nil
	}
	text := err.Error()
	if e, ok := rueidis.IsRedisErr(err); ok {
		o.overflowed = o.kind == opCount && strings.Contains(text, "overflow")
		if o.overflowed || e.IsNoScript() {
			return true, nil
		}
		if o.readsClock() {
			text = scriptError(text)
		}
		if l.refusal(b, o, text); o.notExecuted != nil {
			return false, nil
		}
	}
	o.refused(text)
	return false, nil
}

// refused records that the server has replied with an error.
func (o *op) refused(text string) {
	if text != errReplicate {
		text, _, _ = strings.Cut(text, " ") // only a code such as NOAUTH, since the rest may name keys or users
	}
	o.err = fmt.Errorf("%w: the store refused a command: %s", counter.ErrUnavailable, text)
}

// sendAgain sends the commands that the replies to the batch have made necessary: EXPIRE for keys that may lack an
// expiry, scripts that the server did not have, and the highest possible value for counters that would exceed it.
func (l *redisLink) sendAgain(b *batch) error {
	l.cmds, l.given = l.cmds[:0], l.given[:0]
	b.ordered = true // has each script sent once as text
	build := l.client.B()
	for _, i := range l.again {
		o := &b.ops[i]
		if o.usesSHA() {
			l.append(b, o)
			continue
		}
		l.ask(o)
		if o.overflowed {
			// SETRANGE keeps the key's expiry, unlike SET.
			l.cmds = append(l.cmds, build.Arbitrary("GET").Args(o.key).Build())
			l.ask(o)
			l.cmds = append(l.cmds, build.Arbitrary("SETRANGE").Args(o.key, "0", maxTotal).Build())
		} else {
			l.cmds = append(l.cmds, build.Arbitrary("EXPIRE", o.key, l.decimal(b.ttl(o))).Build())
		}
	}
	replies, err := l.client.do(l.cmds...)
	if err != nil {
		return err
	}
	for _, i := range l.again {
		o := &b.ops[i]
		reply := o.next(&replies)
		if err := reply.NonRedisError(); err != nil {
			return err
		}
		switch {
		case o.kind == opDelete: // the reply to EXPIRE, usually for a key that does not exist
		case o.kind != opCount:
			again, err := l.read(b, o, reply)
			if err != nil {
				return err
			}
			if again {
				o.notExecuted = &notNow // the server has lost the script again
			}
		case o.overflowed:
			base, err := reply.AsInt64()
			if err != nil {
				o.refused(err.Error())
			}
			o.base = base
			o.next(&replies) // skips the reply to SETRANGE
		}
	}
	return nil
}

// readsClock reports whether the op is a script that uses the server's clock, for sliding windows or token buckets.
func (o *op) readsClock() bool { return o.kind == opMeter || o.kind == opStop && o.stop.meters }

// errReplicate is the error text for a Redis 6 that is configured to replicate scripts as text, and so refuses to write
// after a script has read the clock.
const errReplicate = "it needs lua-replicate-commands yes"

// scriptError returns the error of the command within a script that has failed. Redis 6 puts it inside an error of the
// script.
func scriptError(text string) string {
	if !strings.HasPrefix(text, "ERR Error running script") {
		return text
	}
	if strings.Contains(text, "not allowed after non deterministic commands") {
		return errReplicate
	}
	if _, inner, ok := strings.Cut(text, ": -"); ok {
		return inner
	}
	return text
}

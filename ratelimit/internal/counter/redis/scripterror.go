package redis

import (
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
)

// readsClock says that the command is a script for sliding windows or token buckets.
func (o *op) readsClock() bool { return o.kind == opMeter || o.kind == opStop && o.stop.meters }

// readScriptError takes the error of such a script. again: the server does not know it.
func (l *redisLink) readScriptError(b *batch, o *op, e *rueidis.RedisError) (again bool, err error) {
	if e.IsNoScript() {
		return true, nil
	}
	text := scriptError(e.Error())
	if l.refusal(b, o, text); o.notExecuted != nil {
		return false, nil
	}
	if text != errReplicate {
		text, _, _ = strings.Cut(text, " ") // the rest may name keys or users
	}
	o.err = fmt.Errorf("%w: the store refused a command: %s", counter.ErrUnavailable, text)
	return false, nil
}

// errReplicate is the reason of a Redis 6 that is configured to replicate scripts as such.
const errReplicate = "it needs lua-replicate-commands yes"

// scriptError is the error that a command has in a script. Redis 6 puts the script's own around it.
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

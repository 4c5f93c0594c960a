package redis

import (
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
)

// readsClock reports whether the command is a script for sliding windows or token buckets.
func (o *op) readsClock() bool { return o.kind == opMeter || o.kind == opStop && o.stop.meters }

// readScriptError interprets the error of a script that reads the clock. again: the server does not know the script.
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

// errReplicate is the error with a Redis 6 that is configured to replicate scripts as text.
const errReplicate = "it needs lua-replicate-commands yes"

// scriptError extracts the error of the command within a script. Redis 6 wraps it in an error of the script.
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

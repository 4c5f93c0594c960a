package redis

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter"
)

// Lua has only floating-point numbers. Where a total may exceed 2^53, the scripts pass numbers as text, leave the
// arithmetic to INCRBY and DECRBY, and return the totals as they were before the script, from which the Go method
// settleStop works out the answers.

// refundScript subtracts ARGV[1] from the counter, but not below 0. It keeps the key's expiry and returns the total
// afterwards. Totals and hits are plain decimal numbers, so the longer text is the larger number.
const refundScript = `
local v = redis.call('GET', KEYS[1])
if not v then return '0' end
local n = ARGV[1]
if #v < #n or (#v == #n and v < n) then
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl > 0 then redis.call('SET', KEYS[1], '0', 'PX', ttl) else redis.call('SET', KEYS[1], '0') end
  return '0'
end
redis.call('DECRBY', KEYS[1], n)
return redis.call('GET', KEYS[1])`

// stopScript counts the hits of one request on fixed windows or, if a hit exceeds its limit, counts none of them. ARGV
// has four values for each key: hits, limit, time to live in seconds, and the kind (hit, shadow, refund). The reply has
// 1 if nothing was written and otherwise 0, and then the totals before the script, as text. Limits are compared as
// floating-point numbers, which is exact below 2^53; limits have at most 32 bits.
const stopScript = `
local was, cur, over, held = {}, {}, {}, 0
for i, k in ipairs(KEYS) do
  if not cur[k] then
    was[k] = redis.call('GET', k) or '0'
    cur[k] = tonumber(was[k])
  end
  local n, limit, kind = tonumber(ARGV[4*i-3]), tonumber(ARGV[4*i-2]), ARGV[4*i]
  if kind == 'refund' then
    cur[k] = math.max(0, cur[k] - n)
  elseif cur[k] + n > limit then
    over[i] = true
    if kind == 'hit' then held = 1 end
  else
    cur[k] = cur[k] + n
  end
end
local out = {held}
for i, k in ipairs(KEYS) do
  out[i+1] = was[k]
  local n, ttl, kind = ARGV[4*i-3], ARGV[4*i-1], ARGV[4*i]
  if held == 0 and not over[i] and n ~= '0' then` + writeFixedLua

// writeFixedLua is the end of stopScript and of stopMetersLua. It writes the hits on fixed windows.
const writeFixedLua = `
    local v = redis.call('GET', k)
    if kind == 'refund' then
      if v and (#v < #n or (#v == #n and v < n)) then
        local left = redis.call('PTTL', k)
        if left > 0 then redis.call('SET', k, '0', 'PX', left) else redis.call('SET', k, '0') end
      elseif v then
        redis.call('DECRBY', k, n)
      end
    elseif v then
      if type(redis.pcall('INCRBY', k, n)) == 'table' then redis.call('SETRANGE', k, 0, '9223372036854775807') end
    else
      redis.call('SET', k, n, 'EX', ttl)
    end
  end
end
return out`

// stopClusterScript is stopScript for keys in several slots of one cluster node. A script may reach such keys but not
// declare them, so all keys but the first are at the end of ARGV. If a key is missing and its slot is moving, the
// script fails before anything is written. Redis before version 7 does not know the flag in the first line.
const stopClusterScript = `#!lua flags=allow-cross-slot-keys
local KEYS = {KEYS[1]}
for i = #ARGV - (#ARGV - 4) / 5 + 1, #ARGV do KEYS[#KEYS+1] = ARGV[i] end` + stopScript

// stopArgs returns the arguments (ARGV) of stopScript, or of stopMetersLua if the request needs it.
func (o *op) stopArgs(jitter int64) []string {
	if o.stop.meters {
		return o.meterStopArgs(jitter)
	}
	args := make([]string, 0, 5*len(o.stop.hits))
	for i := range o.stop.hits {
		h := &o.stop.hits[i]
		args = append(args, strconv.FormatInt(h.n, 10), strconv.FormatUint(h.Limit, 10),
			strconv.FormatInt(h.prefix, 10), h.stopKind())
	}
	return args
}

// stopKind returns the kind of hit, as the stop scripts name it.
func (h *callHit) stopKind() string {
	switch {
	case h.Refund:
		return "refund"
	case h.Shadow:
		return "shadow"
	}
	return "hit"
}

// settleStop fills in the answers of a request that a stop script has decided. It repeats the script's decision on the
// counters that the script has found, as addOrStop in package memory does.
func (o *op) settleStop() error {
	hits := o.stop.hits
	if len(o.stop.was) != len(hits) {
		return fmt.Errorf("%w: the script answered %d totals for %d hits", counter.ErrUnavailable, len(o.stop.was),
			len(hits))
	}
	var was []counter.State
	if o.stop.meters {
		was = make([]counter.State, len(hits))
	}
	for i := range hits {
		h := &hits[i]
		var earlier *callHit // the previous hit on the same key in this request
		for j := i - 1; j >= 0 && earlier == nil; j-- {
			if string(hits[j].Key) == string(h.Key) {
				earlier = &hits[j]
			}
		}
		if !h.isMeter() {
			if err := h.settleTotal(o.stop.was[i], earlier, o.stop.held); err != nil {
				return err
			}
			continue
		}
		before, err := parseState(h.Algorithm, o.stop.now, o.stop.was[i])
		if err != nil {
			return err
		}
		if was[i] = before; earlier != nil {
			before = earlier.State
		}
		h.Judge(&before)
	}
	for i := range was {
		h := &hits[i]
		if !o.stop.held || !h.isMeter() {
			continue
		}
		if h.State = was[i]; !h.Refused {
			h.After, h.Spared = h.Used(&h.State), true
		}
	}
	return nil
}

// settleTotal fills in the answer of a hit on a fixed window. text is the counter before the request; earlier is the
// previous hit on the same key, or nil; held says that the script has written nothing.
func (h *callHit) settleTotal(text string, earlier *callHit, held bool) error {
	was, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: the script answered no number", counter.ErrUnavailable)
	}
	before := was
	if earlier != nil {
		before = earlier.prefix
	}
	if h.Refund {
		h.After = max(0, before-h.n)
	} else {
		h.After = counter.Saturate(max(0, before), h.n)
	}
	h.prefix, h.Spared = h.After, false // from here on, prefix is the total before the next hit on this key
	if !h.Refund && uint64(h.After) > h.Limit {
		h.prefix = before
	} else if held {
		h.After, h.Spared = was, true
	}
	return nil
}

// maxTotal is the highest value of a counter, 2^63-1. A counter that would exceed it is set to it.
var maxTotal = strconv.FormatInt(math.MaxInt64, 10)

var (
	stopLua        = newScript(stopScript)
	stopClusterLua = newScript(stopClusterScript)
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// evalStop returns the command that calls the script of an opStop.
func (l *redisLink) evalStop(b *batch, o *op) rueidis.Completed {
	one, several := stopLua, stopClusterLua
	if o.stop.meters {
		one, several = stopMetersScript.pick(l.access.clock), stopMetersClusterScript.pick(l.access.clock)
	}
	keys, args := o.stop.hits, o.stopArgs(b.jitter)
	if l.role == clusterServer && len(keys) > 1 { // the keys may be in several slots
		for i := range keys[1:] {
			args = append(args, string(keys[1+i].Key))
		}
		keys, one = keys[:1], several
	}
	how, script := l.call(b, one)
	c := l.client.B().Arbitrary(how, script, strconv.Itoa(len(keys)))
	for i := range keys {
		c = c.Args(string(keys[i].Key))
	}
	return c.Args(l.timed(o, args)...).Build()
}

// timed appends the time to args if the script takes it as an argument.
func (l *redisLink) timed(o *op, args []string) []string {
	if o.stop.meters && l.access.clock != nil {
		args = append(args, l.decimal(l.access.clock()))
	}
	return args
}

func (o *op) readStop(r rueidis.RedisResult) error {
	out, err := r.ToArray()
	if err != nil {
		return err
	}
	o.stop.was = o.stop.was[:0]
	for i := range out {
		switch {
		case i == 0:
			var held int64
			held, err = out[0].AsInt64()
			o.stop.held = held == 1
		case i == 1 && o.stop.meters:
			o.stop.now, err = out[1].AsInt64()
		default:
			var total string
			total, err = out[i].ToString()
			o.stop.was = append(o.stop.was, total)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

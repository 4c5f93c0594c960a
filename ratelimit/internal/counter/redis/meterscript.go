package redis

import "strings"

// The scripts below decide hits on sliding windows and token buckets. A batch calls a script once for each key. The
// scripts read the server's clock, so that all processes judge a counter by the same clock, in the order in which the
// server executes the scripts.
//
// ARGV has the counter's numbers, and then four values for each run of equal hits: how many hits, their kind, and two
// numbers that depend on the kind. The reply has the server's time and the counter as it was before the runs; from
// these, the Go method replay works out the outcome of each hit with the same integers. All numbers are below 2^53, so
// that Lua's floating-point numbers are exact. They are formatted by string.format, since '..' and tostring would keep
// only 14 digits. A key is written together with its expiry, and only if a run has changed the counter, or if a hit has
// found its stored state ahead of the clock, which may have been set back.

// timeLua reads the server's clock into now, in µs.
const timeLua = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]`

// instantLua takes the time from the last argument instead; see Options.Clock.
const instantLua = `
local now = table.remove(ARGV) + 0`

// The constants below are pieces of scripts, which contain the arithmetic of both algorithms. The comment of each piece
// names the Lua locals that it uses or sets. In all of them, k is the key and now is the time in µs; future says that
// the stored state was ahead of now.

// readSlidingLua reads a sliding window whose length is w seconds. It sets i, the number of the present window; c, its
// hits; p, the hits of the window before; and s, how many of the hits in p still count.
const readSlidingLua = `
local size = w * 1000000
local i, c, p, future = math.floor(now / size), 0, 0, false
local e = now - i * size
local left, v = 1000000 - math.floor(e / w), redis.call('GET', k)
if v then
  local vi, vc, vp = string.match(v, '^(%d+) (%d+) (%d+)$')
  if not vi then return redis.error_reply('ERR the value is no sliding window') end
  vi = vi + 0
  if vi >= i then
    c, p, future = vc + 0, vp + 0, vi > i
  elseif vi == i - 1 then
    p = vc + 0
  end
end
local s = math.ceil(p * left / 1000000)`

// writeSlidingLua writes the sliding window. It also uses jitter, in ms, which is added to the expiry.
const writeSlidingLua = `
if c == 0 and p == 0 then
  redis.call('DEL', k)
else
  redis.call('SET', k, string.format('%.0f %.0f %.0f', i, c, p),
    'PX', string.format('%.0f', math.ceil((2 * size - e) / 1000) + jitter))
end`

// readBucketLua reads the time at which a token bucket will be full again: a in µs, plus the fraction r. It sets a and
// r to 0 if there is no such key. All fractions are in units of 1/parts µs. fa and fr are, in the same form, the time
// at which a bucket that is empty now would be full.
const readBucketLua = `
local a, r, future, v = 0, 0, false, redis.call('GET', k)
if v then
  local va, vr = string.match(v, '^(%d+) (%d+)$')
  if not va then return redis.error_reply('ERR the value is no token bucket') end
  a, r = va + 0, math.min(vr + 0, parts - 1)
  if a > fa or (a == fa and r > fr) then a, r, future = fa, fr, true end
end`

// admitLua sets na and nr to the time at which the bucket would be full again if the hit passed: na in µs, and nr the
// fraction, in units of 1/parts µs. Refilling the tokens of this hit takes q µs and the fraction t. a and r are the
// time at which the bucket would be full again without the hit.
const admitLua = `
local na, nr = a + q, r + t
if nr >= parts then na, nr = na + 1, nr - parts end`

// tooFullLua is the condition that the hit does not pass, since the bucket would lack more tokens than it can hold.
// fullLua is the condition that the bucket is full, so that there is nothing to give back.
const (
	tooFullLua = `na > fa or (na == fa and nr > fr)`
	fullLua    = `a < now or (a == now and r == 0)`
)

const giveBackLua = `
a, r = a - q, r - t
if r < 0 then a, r = a - 1, r + parts end
if a < now then a, r = now, 0 end`

const writeBucketLua = `
if ` + fullLua + ` then
  redis.call('DEL', k)
else
  redis.call('SET', k, string.format('%.0f %.0f', a, r),
    'PX', string.format('%.0f', math.ceil((a + 1 - now) / 1000)))
end`

// slidingLua decides the hits of a batch on one sliding window. ARGV[1] is the length of the window in seconds, ARGV[2]
// the jitter in ms. There are three kinds of runs, each with two numbers: h adds hits (n, limit), g gives hits back (n,
// 0), and u undoes hits (n, the window in which they were counted).
const slidingLua = `
local k, w, jitter = KEYS[1], ARGV[1] + 0, ARGV[2]` + readSlidingLua + `
local c0, p0, write = c, p, false
for x = 3, #ARGV, 4 do
  local count, kind, n, y = ARGV[x] + 0, ARGV[x+1], ARGV[x+2] + 0, ARGV[x+3] + 0
  if kind == 'h' then
    local pass = math.min(count, math.floor((y - c - s) / n))
    if pass > 0 then c = c + pass * n end
    write = write or future or pass > 0
  elseif kind == 'g' or y == i then
    write = write or c > 0
    c = math.max(0, c - count * n)
  elseif y == i - 1 then
    write = write or p > 0
    p = math.max(0, p - count * n)
    s = math.ceil(p * left / 1000000)
  end
end
if write then` + writeSlidingLua + `
end
return {now, i, c0, p0}`

// bucketLua decides the hits of a batch on one token bucket. ARGV[1], in µs, plus the fraction ARGV[2], in units of
// 1/ARGV[3] µs, is how long an empty bucket takes to fill. There are three kinds of runs: h adds hits; g and u give
// hits back. The two numbers of a run are the time in which the bucket regains one hit: whole µs, and the fraction.
const bucketLua = `
local k, fa, fr, parts = KEYS[1], now + ARGV[1], ARGV[2] + 0, ARGV[3] + 0` + readBucketLua + `
local a0, r0, write = a, r, false
for x = 4, #ARGV, 4 do
  local n, q, t = ARGV[x] + 0, ARGV[x+2] + 0, ARGV[x+3] + 0
  if ARGV[x+1] == 'h' then
    if n > 0 and a < now then a, r = now, 0 end
    for _ = 1, n do` + admitLua + `
      if ` + tooFullLua + ` then break end
      a, r = na, nr
    end
    write = write or future
  else
    for _ = 1, n do
      if ` + fullLua + ` then break end` + giveBackLua + `
    end
  end
end
if write or a ~= a0 or r ~= r0 then` + writeBucketLua + `
end
return {now, a0, r0}`

// stopMetersLua is the stop script for requests that have sliding windows or token buckets. ARGV has eight values for
// each key: the algorithm (f fixed window, r sliding window, b token bucket), the kind (hit, shadow, refund), and six
// numbers:
//
//	f  hits, limit, time to live
//	r  hits, limit, window in seconds, jitter in ms
//	b  time that the hits take (two numbers), limit, time in which an empty bucket fills (two numbers),
//	   and 0: a look, 1: hits, 2: more hits than the bucket is large
//
// The script first judges all hits in memory, and then writes either all counters or none. Only a counter that is ahead
// of the clock is corrected in any case. The reply says whether nothing was written, and has the server's time and the
// counters before the script.
const stopMetersLua = `
local ms, over, held = {}, {}, 0
local function sliding(m, k, w, jitter)` + readSlidingLua + `
  m.was, m.future, m.c, m.p, m.s = string.format('%.0f %.0f %.0f', i, c, p), future, c, p, s
  m.write = function()
    if held == 0 then c = m.c end` + writeSlidingLua + `
  end
end
local function bucket(m, k, parts, fa, fr)` + readBucketLua + `
  m.was, m.future, m.a, m.r = string.format('%.0f %.0f', a, r), future, a, r
  m.write = function()
    if held == 0 then a, r = m.a, m.r end` + writeBucketLua + `
  end
end
for i, k in ipairs(KEYS) do
  local x = 8 * i - 7
  local alg, kind, m = ARGV[x], ARGV[x+1], ms[k]
  local parts, fa, fr = ARGV[x+4] + 0, now + ARGV[x+5], ARGV[x+6] + 0
  if not m then
    m = {}
    ms[k] = m
    local err
    if alg == 'r' then
      err = sliding(m, k, parts, ARGV[x+5])
    elseif alg == 'b' then
      err = bucket(m, k, parts, fa, fr)
    else
      m.was = redis.call('GET', k) or '0'
      m.cur = tonumber(m.was)
    end
    if err then return err end
  end
  local refused = false
  if alg == 'b' then
    local q, t, n, a, r = ARGV[x+2] + 0, ARGV[x+3] + 0, ARGV[x+7], m.a, m.r
    if n == '0' then
      -- a look at a bucket that is never over
    elseif kind == 'refund' then
      if not (` + fullLua + `) then` + giveBackLua + `
        m.a, m.r, m.changed = a, r, true
      end
    else
      if a < now then a, r = now, 0 end` + admitLua + `
      m.bring = m.bring or (m.future and n == '1')
      refused = n == '2' or ` + tooFullLua + `
      if not refused then m.a, m.r, m.changed = na, nr, true end
    end
  else
    local n, limit = ARGV[x+2] + 0, ARGV[x+3] + 0
    if kind == 'refund' then
      if m.cur then
        m.cur = math.max(0, m.cur - n)
      elseif n > 0 and m.c > 0 then
        m.c, m.changed = math.max(0, m.c - n), true
      end
    else
      m.bring = m.bring or (m.future and n > 0 and n <= limit)
      refused = (m.cur or m.c + m.s) + n > limit
      if refused then
        -- nothing is counted
      elseif m.cur then
        m.cur = m.cur + n
      elseif n > 0 then
        m.c, m.changed = m.c + n, true
      end
    end
  end
  over[i] = refused
  if refused and kind == 'hit' then held = 1 end
end
local out = {held, now}
for i, k in ipairs(KEYS) do
  local x, m = 8 * i - 7, ms[k]
  out[i+2] = m.was
  local n, ttl, kind = ARGV[x+2], ARGV[x+4], ARGV[x+1]
  if m.write then
    if m.bring or (held == 0 and m.changed) then m.write() end
    m.bring, m.changed = false, false
  elseif held == 0 and not over[i] and n ~= '0' then` + writeFixedLua

// stopMetersClusterLua is stopMetersLua for keys in several slots of one cluster node. The comment of stopClusterScript
// explains how the script gets these keys.
const stopMetersClusterLua = `
local KEYS = {KEYS[1]}
for i = #ARGV - (#ARGV - 8) / 9 + 1, #ARGV do KEYS[#KEYS+1] = ARGV[i] end` + stopMetersLua

// meterScript is a script in two variants. The variant script reads the server's clock. The variant timed, for tests,
// takes the time as its last argument. The server drops keys by its own clock, which goes on while the time of a test
// stands still, so timed lets keys live an hour longer.
type meterScript struct{ script, timed *script }

func newMeterScript(shebang, body string) meterScript {
	longer := strings.ReplaceAll(body, "'PX', string.format('%.0f', ", "'PX', string.format('%.0f', 3600000 + ")
	return meterScript{newScript(shebang + timeLua + body), newScript(shebang + instantLua + longer)}
}

var (
	slidingScript           = newMeterScript("", slidingLua)
	bucketScript            = newMeterScript("", bucketLua)
	stopMetersScript        = newMeterScript("", stopMetersLua)
	stopMetersClusterScript = newMeterScript(strings.SplitAfter(stopClusterScript, "\n")[0], stopMetersClusterLua)
)

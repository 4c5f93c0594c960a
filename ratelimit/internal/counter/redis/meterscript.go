package redis

import "strings"

// Sliding windows and token buckets are decided by scripts, one call for each key and batch, which read the server's
// clock: so that all processes judge a counter at one clock, and in the order in which the server does.
//
// ARGV holds the counter's numbers and then runs of four: how many hits, of which kind, and two numbers. Equal hits one
// after another are one run. The answer is the instant and the counter as it stood before the runs, from which
// replay works out what became of each hit, with the same integers. All numbers are below 2^53, so that Lua's doubles
// are exact; '..' and tostring would keep 14 digits only. A key is written with its expiry, and only if a run changed
// the counter or a hit found its state ahead of the clock, which can go back.

// timeLua reads the server's clock.
const timeLua = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]`

// instantLua has the clock in the last argument instead; see Options.Clock.
const instantLua = `
local now = table.remove(ARGV) + 0`

// slidingLua is for a sliding window. ARGV[1] is the window in seconds, ARGV[2] the jitter in ms. Kinds of runs: h (n,
// limit), g gives hits back (n, 0), u undoes hits (n, the window that they were counted in).
const slidingLua = `
local w = ARGV[1] + 0
local size = w * 1000000
local i, c, p = math.floor(now / size), 0, 0
local e = now - i * size
local v, future = redis.call('GET', KEYS[1]), false
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
local c0, p0, write = c, p, false
local left = 1000000 - math.floor(e / w)
local s = math.ceil(p * left / 1000000)
for x = 3, #ARGV, 4 do
  local count, kind, n, y = ARGV[x] + 0, ARGV[x+1], ARGV[x+2] + 0, ARGV[x+3] + 0
  if kind == 'h' then
    local k = math.min(count, math.floor((y - c - s) / n))
    if k > 0 then c = c + k * n end
    write = write or future or k > 0
  elseif kind == 'g' or y == i then
    write = write or c > 0
    c = math.max(0, c - count * n)
  elseif y == i - 1 then
    write = write or p > 0
    p = math.max(0, p - count * n)
    s = math.ceil(p * left / 1000000)
  end
end
if write then
  if c == 0 and p == 0 then
    redis.call('DEL', KEYS[1])
  else
    redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f', i, c, p),
      'PX', string.format('%.0f', math.ceil((2 * size - e) / 1000) + ARGV[2]))
  end
end
return {now, i, c0, p0}`

// bucketLua is for a token bucket. ARGV[1] and ARGV[2] are how long an empty one takes to fill: whole µs, and parts of
// a µs of which there are ARGV[3]. Kinds of runs: h, and g or u to give back, both with the time that the hits take.
const bucketLua = `
local parts = ARGV[3] + 0
local fa, fr = now + ARGV[1], ARGV[2] + 0
local a, r = 0, 0
local v, future = redis.call('GET', KEYS[1]), false
if v then
  local va, vr = string.match(v, '^(%d+) (%d+)$')
  if not va then return redis.error_reply('ERR the value is no token bucket') end
  a, r = va + 0, math.min(vr + 0, parts - 1)
  if a > fa or (a == fa and r > fr) then a, r, future = fa, fr, true end
end
local a0, r0, write = a, r, false
for x = 4, #ARGV, 4 do
  local q, t = ARGV[x+2] + 0, ARGV[x+3] + 0
  if ARGV[x+1] == 'h' then
    local n = ARGV[x] + 0
    if n > 0 and a < now then a, r = now, 0 end
    for k = 1, n do
      local na, nr = a + q, r + t
      if nr >= parts then na, nr = na + 1, nr - parts end
      if na > fa or (na == fa and nr > fr) then break end
      a, r = na, nr
    end
    write = write or future
  else
    for k = 1, ARGV[x] + 0 do
      if a < now or (a == now and r == 0) then break end
      a, r = a - q, r - t
      if r < 0 then a, r = a - 1, r + parts end
      if a < now then a, r = now, 0 end
    end
  end
end
if write or a ~= a0 or r ~= r0 then
  if a < now or (a == now and r == 0) then
    redis.call('DEL', KEYS[1])
  else
    redis.call('SET', KEYS[1], string.format('%.0f %.0f', a, r),
      'PX', string.format('%.0f', math.ceil((a + 1 - now) / 1000)))
  end
end
return {now, a0, r0}`

// stopMetersLua is the stop script for requests with sliding windows or token buckets. ARGV holds eight for each key:
// the algorithm (f, r, b), the kind (a hit, a shadow hit, a refund), and six numbers:
//
//	f  hits, limit, time to live
//	r  hits, limit, window in seconds, jitter in ms
//	b  time that the hits take (two numbers), limit, time in which an empty bucket fills (two numbers),
//	   and 0: a look, 1: hits, 2: more hits than the bucket is large
//
// It first judges all on what it remembers of each key, and then writes all of that or nothing. Only a counter ahead of
// the clock is brought down in any case. It returns whether it held back, the instant, and the counters as they stood.
const stopMetersLua = `
local ms, over, held = {}, {}, 0
local function sliding(m, x)
  local w, v = ARGV[x+4] + 0, redis.call('GET', m.k)
  local size = w * 1000000
  m.i, m.c, m.p = math.floor(now / size), 0, 0
  local e = now - m.i * size
  m.left, m.ttl = 1000000 - math.floor(e / w), math.ceil((2 * size - e) / 1000) + ARGV[x+5]
  if v then
    local vi, vc, vp = string.match(v, '^(%d+) (%d+) (%d+)$')
    if not vi then return true end
    vi = vi + 0
    if vi >= m.i then
      m.c, m.p, m.future = vc + 0, vp + 0, vi > m.i
    elseif vi == m.i - 1 then
      m.p = vc + 0
    end
  end
  m.was = string.format('%.0f %.0f %.0f', m.i, m.c, m.p)
  m.c0 = m.c
end
local function bucket(m, x)
  local v, parts = redis.call('GET', m.k), ARGV[x+4] + 0
  local fa, fr = now + ARGV[x+5], ARGV[x+6] + 0
  m.a, m.r = 0, 0
  if v then
    local va, vr = string.match(v, '^(%d+) (%d+)$')
    if not va then return true end
    m.a, m.r = va + 0, math.min(vr + 0, parts - 1)
    if m.a > fa or (m.a == fa and m.r > fr) then m.a, m.r, m.future = fa, fr, true end
  end
  m.was = string.format('%.0f %.0f', m.a, m.r)
  m.a0, m.r0 = m.a, m.r
end
for i, k in ipairs(KEYS) do
  local x = 8 * i - 7
  local alg, kind, m = ARGV[x], ARGV[x+1], ms[k]
  if not m then
    m = {k = k, alg = alg}
    ms[k] = m
    if alg == 'r' then
      if sliding(m, x) then return redis.error_reply('ERR a value is no sliding window') end
    elseif alg == 'b' then
      if bucket(m, x) then return redis.error_reply('ERR a value is no token bucket') end
    else
      m.was = redis.call('GET', k) or '0'
      m.cur = tonumber(m.was)
    end
  end
  if alg == 'b' then
    local q, t, parts, n = ARGV[x+2] + 0, ARGV[x+3] + 0, ARGV[x+4] + 0, ARGV[x+7]
    local fa, fr = now + ARGV[x+5], ARGV[x+6] + 0
    local a, r = m.a, m.r
    if n == '0' then
      -- a look at a bucket that is never over
    elseif kind == 'refund' then
      if not (a < now or (a == now and r == 0)) then
        a, r = a - q, r - t
        if r < 0 then a, r = a - 1, r + parts end
        if a < now then a, r = now, 0 end
        m.a, m.r, m.changed = a, r, true
      end
    else
      if a < now then a, r = now, 0 end
      a, r = a + q, r + t
      if r >= parts then a, r = a + 1, r - parts end
      m.bring = m.bring or (m.future and n == '1')
      if n == '2' or a > fa or (a == fa and r > fr) then
        over[i] = true
        if kind == 'hit' then held = 1 end
      else
        m.a, m.r, m.changed = a, r, true
      end
    end
  else
    local n, limit = ARGV[x+2] + 0, ARGV[x+3] + 0
    local used = m.cur or m.c + math.ceil(m.p * m.left / 1000000)
    if kind == 'refund' then
      if m.cur then
        m.cur = math.max(0, m.cur - n)
      elseif n > 0 and m.c > 0 then
        m.c, m.changed = math.max(0, m.c - n), true
      end
    else
      m.bring = m.bring or (m.future and n > 0 and n <= limit)
      if used + n > limit then
        over[i] = true
        if kind == 'hit' then held = 1 end
      elseif m.cur then
        m.cur = m.cur + n
      elseif n > 0 then
        m.c, m.changed = m.c + n, true
      end
    end
  end
end
local function write(m)
  if held == 1 then
    if not m.bring then return end
    m.c, m.a, m.r = m.c0, m.a0, m.r0
  elseif not (m.bring or m.changed) then
    return
  end
  if m.alg == 'r' then
    if m.c == 0 and m.p == 0 then
      redis.call('DEL', m.k)
    else
      redis.call('SET', m.k, string.format('%.0f %.0f %.0f', m.i, m.c, m.p), 'PX', string.format('%.0f', m.ttl))
    end
  elseif m.a < now or (m.a == now and m.r == 0) then
    redis.call('DEL', m.k)
  else
    redis.call('SET', m.k, string.format('%.0f %.0f', m.a, m.r),
      'PX', string.format('%.0f', math.ceil((m.a + 1 - now) / 1000)))
  end
end
local out = {held, now}
for i, k in ipairs(KEYS) do
  local x, m = 8 * i - 7, ms[k]
  out[i+2] = m.was
  local n, ttl, kind = ARGV[x+2], ARGV[x+4], ARGV[x+1]
  if m.alg ~= 'f' then
    if not m.done then write(m) end
    m.done = true
  elseif held == 0 and not over[i] and n ~= '0' then` + writeFixedLua

// stopMetersClusterLua does the same for keys in several slots of one node; as stopClusterScript.
const stopMetersClusterLua = `
local KEYS = {KEYS[1]}
for i = #ARGV - (#ARGV - 8) / 9 + 1, #ARGV do KEYS[#KEYS+1] = ARGV[i] end` + stopMetersLua

// meterScript is a script that reads the clock, and the same with the instant as its last argument. The server's own
// clock, by which it drops keys, runs on while such an instant stands still, so that keys then live an hour longer.
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

"""Lua scripts of a shared frontier, which run atomically on its Redis server.

The keys of a partition begin with the base in KEYS[1]:

    :state      hash    counters, clock correction, and size of the set of seen URLs
    :hosts      hash    each host ever seen: due instant, leased URLs, their limit, pages, owner, registered domain
    :due        zset    registered domains with hosts in `:due:<d>`, by the instant since which they wait for a turn
    :due:<d>    zset    hosts of the registered domain d with queued and no leased URLs, by the instant they are due
    :mine:<w>   zset    hosts of which worker w has leased some URLs and may lease more
    :urls       zset    queued URLs, all with score 0: `host 0 rank(8) seq(6) [parent, tries, target, target …]`
    :claims     hash    leased URLs, by ticket, each with the nonce of the call that claimed it
    :leases     zset    tickets, by the instant they expire
    :failures   list    [instant, host, target, reason]
    :seen:g:n   sets    fingerprints; generation g has 8 * 2^g sets, so that each stays an array of integers

The queued URLs are sorted by their bytes: by host, by rank, then by age. URLs of one host that one page added together
share a member, which saves their parent and most of Redis's overhead per member. A target is `s` for https or `p` for
http, followed by the path and query.
"""

from __future__ import annotations

import hashlib

from curtsy.crawling.frontier.redis_codec import Script

GONE = "JOBGONE"
"""Prefix of the error for a missing job or partition."""


def _script(*parts: str) -> Script:
    source = "".join(parts)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


# ARGV[1] is the current time in microseconds in tests, else empty for the server's TIME. Time never runs backwards in a
# partition: if the clock is set back, `shift` adds the difference from then on.
_PRELUDE = r"""
local base = KEYS[1]
local STATE, HOSTS, DUE, URLS = base .. ':state', base .. ':hosts', base .. ':due', base .. ':urls'
local CLAIMS, LEASES = base .. ':claims', base .. ':leases'
local NAMES = {'ticket', 'seq', 'queued', 'added', 'done', 'failed', 'last', 'shift', 'level', 'filled'}
local state, is_changed = {}, false
local values = redis.call('HMGET', STATE, unpack(NAMES))
if not values[1] then
  return redis.error_reply('JOBGONE there is no such partition')
end
for place, name in ipairs(NAMES) do
  state[name] = tonumber(values[place]) or 0
end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
now = now + state.shift
if now < state.last then
  state.shift, now, is_changed = state.shift + state.last - now, state.last, true
end
state.last = now

local function get_host(name)
  local packed = redis.call('HGET', HOSTS, name)
  if not packed then
    return {name = name, due = 0, out = 0, limit = 1, pages = 0, owner = '', site = name}, true
  end
  local due, out, limit, pages, owner, site = struct.unpack('>dIIIss', packed)
  return {name = name, due = due, out = out, limit = limit, pages = pages, owner = owner, site = site}
end

local function set_host(host)
  local packed = struct.pack('>dIIIss', host.due, host.out, host.limit, host.pages, host.owner, host.site)
  redis.call('HSET', HOSTS, host.name, packed)
end

local function first(host)
  return redis.call('ZRANGE', URLS, '[' .. host.name .. '\0', '(' .. host.name .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- Let a host stand in line, if it has something waiting and may have more out; the line of one worker if that has some.
local function place(host)
  if host.out < host.limit and first(host) then
    local moment = math.max(host.due, now)
    if host.out > 0 then
      redis.call('ZADD', base .. ':mine:' .. host.owner, 'NX', moment, host.name)
    else
      redis.call('ZADD', DUE .. ':' .. host.site, 'NX', moment, host.name)
      redis.call('ZADD', DUE, 'LT', moment, host.site)
    end
  end
end

-- Return the fields of a claim; nil if it does not exist or has another nonce.
local function get_claim(ticket, nonce)
  local packed = redis.call('HGET', CLAIMS, ticket)
  local claim = packed and cmsgpack.unpack(packed)
  return claim and (not nonce or claim[7] == nonce) and claim or nil
end

-- End a claim; return it and its host, which the caller stores and places. Return nil for an unknown claim.
local function end_claim(ticket, nonce)
  local found = get_claim(ticket, nonce)
  if not found then
    return nil
  end
  redis.call('ZREM', LEASES, ticket)
  redis.call('HDEL', CLAIMS, ticket)
  local name, rank, seq, tries, parent, target = unpack(found)
  local host = get_host(name)
  redis.call('ZREM', base .. ':mine:' .. host.owner, name)
  host.out = host.out - 1
  if host.out == 0 then
    host.owner = ''
  end
  is_changed = true
  return {rank = rank, seq = seq, tries = tries, parent = parent, target = target}, host
end

local function wait_again(claim, host, rank, tries)
  local body = cmsgpack.pack({claim.parent, tries, claim.target})
  redis.call('ZADD', URLS, 0, host.name .. '\0' .. rank .. claim.seq .. body)
  state.queued = state.queued + 1
end

-- What every script says at its end, packed: microseconds until something may be had here by this worker (-1: never),
-- the numbers, and what was asked for. Others' hosts may be had when they have waited for `grace` beyond their moment.
-- Of registered domains that are `full`, nothing may be had.
local function report(worker, grace, answer, full)
  if is_changed then
    local words = {}
    for _, name in ipairs(NAMES) do
      words[#words + 1], words[#words + 2] = name, state[name]
    end
    redis.call('HSET', STATE, unpack(words))
  end
  local soonest = -1
  full = full or {}
  for key, extra in pairs({[DUE] = grace, [base .. ':mine:' .. worker] = 0, [LEASES] = 0}) do
    local found = redis.call('ZRANGE', key, 0, #full, 'WITHSCORES')
    local head = 1
    while found[head] and full[found[head]] do
      head = head + 2
    end
    if found[head] then
      local wait = math.max(0, found[head + 1] + extra - now)
      soonest = soonest < 0 and wait or math.min(soonest, wait)
    end
  end
  return cmsgpack.pack({
    soonest, state.queued, redis.call('HLEN', CLAIMS), state.done, state.failed, redis.call('HLEN', HOSTS),
    state.added, answer,
  })
end
"""

_SEEN = r"""
local SETS, FULL = 8, 384

local function is_seen(mark, levels)
  local spread = tonumber(string.sub(mark, -9))
  for level = 0, levels do
    if redis.call('SISMEMBER', base .. ':seen:' .. level .. ':' .. spread % (SETS * 2 ^ level), mark) == 1 then
      return true
    end
  end
  return false
end

-- A generation that is full is looked at, and no longer added to; the next one has twice as many sets. No set is ever
-- taken apart, and none grows beyond the 512 integers up to which Redis keeps eight bytes for each.
local function is_new(mark)
  if is_seen(mark, state.level - 1) then
    return false
  end
  local spread, sets = tonumber(string.sub(mark, -9)), SETS * 2 ^ state.level
  if redis.call('SADD', base .. ':seen:' .. state.level .. ':' .. spread % sets, mark) == 0 then
    return false
  end
  state.filled = state.filled + 1
  if state.filled >= sets * FULL then
    state.level, state.filled = state.level + 1, 0
  end
  is_changed = true
  return true
end
"""

# ARGV: now, worker, grace; then groups of: host, limit, rank, parent, count, registered domain; and `count` times:
# fingerprint, target.
ADD = _script(
    _PRELUDE,
    _SEEN,
    r"""
local BUNDLE = 32
local added, at = 0, 4
while at < #ARGV do
  local name, limit, rank, parent, count = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local host, is_unknown = get_host(name)
  host.site = ARGV[at + 5]
  local bundle, new = {parent, 0}, 0
  local function tie_up()
    local seq = struct.pack('>I6', state.seq + 1)
    redis.call('ZADD', URLS, 0, name .. '\0' .. rank .. seq .. cmsgpack.pack(bundle))
    state.seq = state.seq + #bundle - 2
    bundle = {parent, 0}
  end
  for item = at + 6, at + 4 + 2 * count, 2 do
    if is_new(ARGV[item]) then
      new = new + 1
      bundle[#bundle + 1] = ARGV[item + 1]
      if #bundle == BUNDLE + 2 then
        tie_up()
      end
    end
  end
  if #bundle > 2 then
    tie_up()
  end
  if is_unknown or host.limit ~= limit then
    host.limit = limit
    set_host(host)
  end
  if new > 0 then
    place(host)
  end
  added = added + new
  at = at + 6 + 2 * count
end
state.queued, state.added = state.queued + added, state.added + added
return report(ARGV[2], tonumber(ARGV[3]), added)
""",
)

# ARGV: now, worker, grace, most URLs to claim, microseconds of the lease, nonce, most leased URLs per host (or empty:
# as added), most slots per registered domain (or empty: no limit); then pairs of a registered domain and its slots in use.
# With 0 URLs to claim, the script only takes back expired leases and reports. Registered domains take turns: one that
# was served goes behind all that wait.
CLAIM = _script(
    _PRELUDE,
    r"""
local MOST = 100
local worker, grace, wanted, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local nonce, limit, mine = ARGV[6], tonumber(ARGV[7]), base .. ':mine:' .. ARGV[2]
local share, held = tonumber(ARGV[8]) or math.huge, {}
local claimed, line, touched, served, full = {}, {}, {}, {}, {}
for at = 9, #ARGV, 2 do
  held[ARGV[at]] = tonumber(ARGV[at + 1])
  if held[ARGV[at]] >= share then
    full[#full + 1], full[ARGV[at]] = ARGV[at], true
  end
end

for _, ticket in ipairs(redis.call('ZRANGE', LEASES, '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST)) do
  local claim, host = end_claim(ticket)
  if not claim then
    redis.call('ZREM', LEASES, ticket)
  else
    wait_again(claim, host, claim.rank, claim.tries + 1)
    set_host(host)
    place(host)
  end
end

local function gather(key, latest, is_site)
  local found = redis.call('ZRANGE', key, '-inf', latest, 'BYSCORE', 'LIMIT', 0, wanted + #full, 'WITHSCORES')
  for place = 1, #found, 2 do
    local entry = {due = tonumber(found[place + 1]), turn = #line, again = {}}
    entry[is_site and 'site' or 'host'] = found[place]
    line[#line + 1] = entry
  end
end

local function touch(name, key)
  local host = touched[name]
  if not host then
    host = get_host(name)
    host.limit = limit or host.limit
    touched[name] = host
    redis.call('ZREM', key, name)
  end
  return host
end

-- The host whose turn it is in an entry: the first that waits of a registered domain, then those that were served.
local function next_host(entry)
  if entry.host then
    return touch(entry.host, mine)
  end
  local key = DUE .. ':' .. entry.site
  local name = redis.call('ZRANGE', key, '-inf', now - grace, 'BYSCORE', 'LIMIT', 0, 1)[1]
  return name and touch(name, key) or table.remove(entry.again, 1)
end

local function serve(host, member)
  redis.call('ZREM', URLS, member)
  local at = #host.name + 1
  local rank, seq = string.sub(member, at + 1, at + 8), string.sub(member, at + 9, at + 14)
  local bundle = cmsgpack.unpack(string.sub(member, at + 15))
  local parent, tries, target = bundle[1], bundle[2], bundle[3]
  if bundle[4] then
    table.remove(bundle, 3)
    local head = string.sub(member, 1, at + 8) .. struct.pack('>I6', struct.unpack('>I6', seq) + 1)
    redis.call('ZADD', URLS, 0, head .. cmsgpack.pack(bundle))
  end
  state.ticket, state.queued, is_changed = state.ticket + 1, state.queued - 1, true
  local ticket = string.format('%.0f', state.ticket)
  redis.call('HSET', CLAIMS, ticket, cmsgpack.pack({host.name, rank, seq, tries, parent, target, nonce}))
  redis.call('ZADD', LEASES, now + lease, ticket)
  host.out, host.owner = host.out + 1, worker
  claimed[#claimed + 1] = {state.ticket, host.name, target, (struct.unpack('>I8', rank)), parent, tries, host.pages}
end

if wanted > 0 then
  gather(DUE, now - grace, true)
  local others = #line
  gather(mine, now)
  if #line > others then
    table.sort(line, function(one, other)
      return one.due < other.due or one.due == other.due and one.turn < other.turn
    end)
  end
end
local turn = 1
while #claimed < wanted and line[turn] do
  local entry = line[turn]
  local host = not full[entry.site] and next_host(entry)
  if host and full[host.site] then
    host = nil
  end
  local is_free = host and (host.out == 0 or host.owner == worker)
  local member = is_free and host.out < host.limit and first(host)
  if member then
    serve(host, member)
    entry.again[#entry.again + 1] = host
    held[host.site] = (held[host.site] or 0) + 1
    if held[host.site] >= share then
      full[#full + 1], full[host.site] = host.site, true
    end
  end
  if member or host and entry.site then
    line[#line + 1] = entry -- for another one, when the others had their turn
    served[host.site] = true
  end
  turn = turn + 1
end
for _, host in pairs(touched) do
  set_host(host)
  place(host)
end
for site in pairs(served) do
  local head = redis.call('ZRANGE', DUE .. ':' .. site, 0, 0, 'WITHSCORES')
  if head[2] then
    redis.call('ZADD', DUE, math.max(head[2], now), site)
  else
    redis.call('ZREM', DUE, site)
  end
end
return report(worker, grace, claimed, full)
""",
)

# ARGV: now, worker, grace; then for each claim: ticket, nonce, end (done, failed, back, or page: done and counted),
# microseconds until the host is due (or empty), and the reason of a failure or the rank of a URL that goes back.
END = _script(
    _PRELUDE,
    r"""
local ended = {}
for at = 4, #ARGV, 5 do
  local how, after, word = ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  local claim, host = end_claim(ARGV[at], ARGV[at + 1])
  ended[#ended + 1] = claim and 1 or 0
  if claim then
    if how == 'page' then
      how, host.pages = 'done', host.pages + 1
    end
    if how == 'back' then
      wait_again(claim, host, word, claim.tries)
    else
      state[how] = state[how] + 1
    end
    if how == 'failed' then
      redis.call('RPUSH', base .. ':failures', cmsgpack.pack({now, host.name, claim.target, word}))
    end
    if after then
      host.due = now + after
    end
    set_host(host)
    place(host)
  end
end
return report(ARGV[2], tonumber(ARGV[3]), ended)
""",
)

# ARGV: now, worker, grace, fingerprint of the page to skip, fingerprint of the page it is skipped for. One is empty if
# it is in another partition. The result is whether the latter was skipped itself: then the former is not.
PASS_OVER = _script(
    _PRELUDE,
    _SEEN,
    r"""
local url, other = ARGV[4], ARGV[5]
local was_left_out = other ~= '' and is_seen(other, state.level)
if url ~= '' and not was_left_out then
  is_new(url)
end
return report(ARGV[2], tonumber(ARGV[3]), was_left_out and 1 or 0)
""",
)

# ARGV: now, worker, grace, ticket, nonce, microseconds of the lease.
RENEW = _script(
    _PRELUDE,
    r"""
local is_valid = get_claim(ARGV[4], ARGV[5]) ~= nil
if is_valid then
  redis.call('ZADD', LEASES, 'XX', now + ARGV[6], ARGV[4])
  is_changed = true
end
return report(ARGV[2], tonumber(ARGV[3]), is_valid and 1 or 0)
""",
)

_TIME = r"""
local time = redis.call('TIME')
local present = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[1]) or present
"""

# ARGV[2] is the job's creation time: a worker of an earlier or forgotten job of this name gets an error.
_ALIVE = r"""
if redis.call('HGET', KEYS[1] .. ':meta', 'born') ~= ARGV[2] then
  return redis.error_reply('JOBGONE there is no such job')
end
"""

# ARGV: now, born, worker, microseconds for which a worker counts as present. Returns the present workers.
BEAT = _script(
    _TIME,
    _ALIVE,
    r"""
local key = KEYS[1] .. ':workers'
redis.call('ZREMRANGEBYSCORE', key, '-inf', now - ARGV[4])
redis.call('ZADD', key, now, ARGV[3])
return redis.call('ZRANGE', key, 0, -1)
""",
)

# ARGV: now, born; then names and values.
NOTE = _script(_ALIVE, "return redis.call('HSET', KEYS[1] .. ':notes', unpack(ARGV, 3))")

# ARGV: now. Returns the workers that have not signed off, each with the microseconds since its last heartbeat.
PRESENT = _script(
    _TIME,
    r"""
local found = redis.call('ZRANGE', KEYS[1] .. ':workers', 0, -1, 'WITHSCORES')
for place = 2, #found, 2 do
  found[place] = now - found[place]
end
return found
""",
)

# ARGV: now, microseconds for which a worker counts as present, worker, partitions of a new job, format, and 1 to start
# over. The creation time is always the server's, also in tests: no two jobs of one name may share keys.
OPEN = _script(
    _TIME,
    r"""
local meta, workers = KEYS[1] .. ':meta', KEYS[1] .. ':workers'
local worker, is_restart = ARGV[3], ARGV[6] == '1'
local born, partitions, format = unpack(redis.call('HMGET', meta, 'born', 'partitions', 'format'))
if born and is_restart then
  redis.call('ZREM', workers, worker)
  local others = redis.call('ZCOUNT', workers, now - ARGV[2], '+inf')
  if others > 0 then
    return {born, partitions, format, others}
  end
end
if not born or is_restart then
  born, partitions, format = string.format('%.0f', present), ARGV[4], ARGV[5]
  redis.call('DEL', workers, KEYS[1] .. ':notes')
  redis.call('HSET', meta, 'born', born, 'partitions', partitions, 'format', format)
end
return {born, partitions, format, 0}
""",
)

"""Common parts of the Lua scripts of a partition, and the layout of its keys.

The keys of a partition begin with the base in KEYS[1]:

    :state      hash    counters, clock correction, and size of the set of seen URLs
    :hosts      hash    each host ever seen: due instant, leased URLs, their limit, pages, owner, registered domain, and
                        its queued URLs if they are few
    :fresh      list    hosts that were never due, by the instant they were added, each with its first URLs if they are
                        few: at most one host of a registered domain
    :due        zset    registered domains with hosts in `:due:<d>`, by the instant since which they wait for a turn
    :due:<d>    zset    hosts of the registered domain d with queued and no leased URLs, by the instant they are due
    :mine:<w>   zset    hosts of which worker w has leased some URLs and may lease more
    :urls       zset    queued URLs, all with score 0: `host 0 rank(8) seq(6) [parent, tries, target, target …]`
    :more:n:<q> lists   later URLs of a long queue q (host and rank), each at most some MB; `:more` has their numbers
    :claims     hash    leased URLs, by ticket, each with the nonce of the call that claimed it
    :leases     zset    tickets, by the instant they expire
    :failures   list    [instant, host, target, reason, parent], the first ones
    :ranks      hash    rank of each of these, by host and target
    :log:<w>    lists   pages of worker w that may be queued again: [epoch second, host, rank, target, parent]
    :seen:g:n   sets    fingerprints; generation g has 8 * 2^g sets, so that each stays an array of integers

The queued URLs are sorted by their bytes: by host, by rank, then by age. URLs of one host that one page added together
share a member, which saves their parent and most of Redis's overhead per member. A target is `s` for https or `p` for
http, followed by the path and query. A parent with https begins with `//`.

Jobs of format 3 have neither `:fresh` nor `:more`, and another packing of hosts. All scripts read both formats. They
write what ARGV[4] says, because workers that know format 3 alone may be at work.
"""

from __future__ import annotations

# ARGV[1] is the current time in microseconds in tests, else empty for the server's TIME. Time never runs backwards in a
# partition: if the clock is set back, `shift` adds the difference from then on. ARGV[2] to ARGV[4] are worker, grace
# and format.
PRELUDE = r"""
local base, worker, grace, is_compact = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) > 3
local STATE, HOSTS, DUE, URLS = base .. ':state', base .. ':hosts', base .. ':due', base .. ':urls'
local CLAIMS, LEASES, FRESH, MORE = base .. ':claims', base .. ':leases', base .. ':fresh', base .. ':more'
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

-- Report what every script reports at its end, packed: microseconds until this worker may claim something here (-1:
-- never), the counts, and the result. Hosts of other workers' partitions are claimed `grace` after they are due. Of
-- registered domains that are `full`, nothing may be claimed.
local function report(answer, full)
  if is_changed then
    local words = {}
    for _, name in ipairs(NAMES) do
      words[#words + 1], words[#words + 2] = name, state[name]
    end
    redis.call('HSET', STATE, unpack(words))
  end
  local soonest = -1
  full = full or {}
  local function consider(moment)
    local wait = math.max(0, moment - now)
    soonest = soonest < 0 and wait or math.min(soonest, wait)
  end
  local leased, waiting = redis.call('HLEN', CLAIMS), {}
  if leased > 0 then
    waiting[LEASES] = 0
  end
  if state.queued > 0 then
    waiting[DUE], waiting[base .. ':mine:' .. worker] = grace, 0
  end
  for key, extra in pairs(waiting) do
    local found = redis.call('ZRANGE', key, 0, #full, 'WITHSCORES')
    local head = 1
    while found[head] and full[found[head]] do
      head = head + 2
    end
    if found[head] then
      consider(found[head + 1] + extra)
    end
  end
  local fresh = state.queued > 0 and redis.call('LINDEX', FRESH, 0)
  if fresh then
    consider(struct.unpack('>d', fresh) + grace)
  end
  return cmsgpack.pack({
    soonest, state.queued, leased, state.done, state.failed, redis.call('HLEN', HOSTS), state.added, answer,
  })
end
"""
"""State, current time, and the report of every script."""

QUEUES = r"""
-- A queue of MANY members continues in lists of CHUNK bytes. LAST stands for them in place of a number in the queue. Up
-- to LONE bytes are stored with the host if it has no other URLs.
local MANY, CHUNK, LONE, LAST = 16, 4 * 2 ^ 20, 400, string.rep('\255', 6)

local function get_host(name)
  local packed = redis.call('HGET', HOSTS, name)
  if not packed then
    return {name = name, due = 0, out = 0, limit = 1, pages = 0, owner = '', site = name}, true
  end
  local host, is_fresh = {name = name}
  if math.floor(string.byte(packed) / 16) == 9 then -- an array
    host.due, host.out, host.limit, host.pages, host.owner, host.site, is_fresh, host.lone =
      unpack(cmsgpack.unpack(packed))
    host.is_fresh = is_fresh == 1
    if type(host.site) == 'number' then
      host.site = string.sub(name, -host.site)
    end
  else
    host.due, host.out, host.limit, host.pages, host.owner, host.site = struct.unpack('>dIIIss', packed)
  end
  return host
end

local function set_host(host)
  local packed
  if is_compact or host.lone or host.is_fresh then
    local site = string.sub(host.name, -#host.site) == host.site and #host.site or host.site
    local is_fresh = host.is_fresh and 1 or 0
    packed = cmsgpack.pack({host.due, host.out, host.limit, host.pages, host.owner, site, is_fresh, host.lone})
  else
    packed = struct.pack('>dIIIss', host.due, host.out, host.limit, host.pages, host.owner, host.site)
  end
  redis.call('HSET', HOSTS, host.name, packed)
end

local function get_more(queue)
  local packed = redis.call('HGET', MORE, queue)
  return unpack(packed and cmsgpack.unpack(packed) or {1, 1, 0})
end

-- Append to the lists of a queue.
local function push(queue, tail)
  local from, to, size = get_more(queue)
  if size > CHUNK then
    to, size = to + 1, 0
  end
  redis.call('RPUSH', MORE .. ':' .. to .. ':' .. queue, tail)
  redis.call('HSET', MORE, queue, cmsgpack.pack({from, to, size + #tail}))
end

-- Move the first members of the lists of a queue to the queue.
local function pull(queue)
  local from, to, size = get_more(queue)
  local key = MORE .. ':' .. from .. ':' .. queue
  for _, tail in ipairs(redis.call('LPOP', key, MANY) or {}) do
    redis.call('ZADD', URLS, 0, queue .. tail)
  end
  if redis.call('EXISTS', key) == 0 then
    if from < to then
      redis.call('HSET', MORE, queue, cmsgpack.pack({from + 1, to, size}))
    else
      redis.call('HDEL', MORE, queue)
      redis.call('ZREM', URLS, queue .. LAST)
    end
  end
end

local function first_in_queue(name)
  return redis.call('ZRANGE', URLS, '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- Return the next queued URLs of a host.
local function first(host)
  if host.lone then
    return host.name .. '\0' .. host.lone
  end
  local member, at = first_in_queue(host.name), #host.name + 1
  while member and string.sub(member, at + 9, at + 14) == LAST do
    pull(string.sub(member, 1, at + 8))
    member = first_in_queue(host.name)
  end
  return member
end

-- Queue URLs. `is_last` is true if they are behind all others of their rank. The caller stores the host.
local function put(host, rank, seq, bundle, is_last)
  local queue, tail = host.name .. '\0' .. rank, seq .. cmsgpack.pack(bundle)
  if is_compact then
    if host.lone then
      redis.call('ZADD', URLS, 0, host.name .. '\0' .. host.lone)
      host.lone = nil
    elseif #tail <= LONE and not first_in_queue(host.name) then
      host.lone = rank .. tail
      return
    end
    local mark = queue .. LAST
    local is_long = is_last and redis.call('ZSCORE', URLS, mark)
    if is_long or is_last and redis.call('ZLEXCOUNT', URLS, '[' .. queue, '[' .. mark) >= MANY then
      redis.call('ZADD', URLS, 0, mark)
      push(queue, tail)
      return
    end
  end
  redis.call('ZADD', URLS, 0, queue .. tail)
end

-- Queue a host by an instant, if it has queued URLs and may have more leased; for one worker if that has leased some.
local function place(host, moment)
  if host.out < host.limit and not host.is_fresh and first(host) then
    moment = moment or math.max(host.due, now)
    if host.out > 0 then
      redis.call('ZADD', base .. ':mine:' .. host.owner, 'NX', moment, host.name)
    else
      redis.call('ZADD', DUE .. ':' .. host.site, 'NX', moment, host.name)
      redis.call('ZADD', DUE, 'LT', moment, host.site)
    end
  end
end
"""
"""Functions for hosts and their queues."""

CLAIMS = r"""
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
  put(host, rank, claim.seq, {claim.parent, tries, claim.target})
  state.queued = state.queued + 1
end
"""
"""Functions for claims; they need QUEUES."""

SEEN = r"""
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
"""Functions for the set of all URLs ever seen."""

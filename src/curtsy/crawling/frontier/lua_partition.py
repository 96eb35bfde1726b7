"""Lua scripts of a partition of a shared frontier, which run atomically on its Redis server.

`lua_library.py` has the layout of the keys. ARGV[1] to ARGV[4] are the time, worker, grace and format.
"""

from __future__ import annotations

from curtsy.crawling.frontier.lua_library import CLAIMS, PRELUDE, QUEUES, SEEN
from curtsy.crawling.frontier.redis_codec import lua

GONE = "JOBGONE"
"""Prefix of the error for a missing job or partition."""

# ARGV from 5: groups of host, limit, rank, parent, count, registered domain, its fingerprint; and `count` times:
# fingerprint, target.
ADD = lua(
    PRELUDE,
    QUEUES,
    SEEN,
    r"""
local BUNDLE = 32
local added, at = 0, 5
while at < #ARGV do
  local name, limit, rank, parent, count = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local host, is_unknown = get_host(name)
  host.site = ARGV[at + 5]
  local bundle, new = {parent, 0}, 0
  local function tie_up()
    put(host, rank, struct.pack('>I6', state.seq + 1), bundle, true)
    state.seq = state.seq + #bundle - 2
    bundle = {parent, 0}
  end
  for item = at + 7, at + 5 + 2 * count, 2 do
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
  if is_compact and is_unknown and new > 0 and is_new(ARGV[at + 6]) then
    host.is_fresh = true
    redis.call('RPUSH', FRESH, struct.pack('>d', now) .. cmsgpack.pack({name, host.lone or ''}))
    host.lone = nil -- a small hash is much smaller than a large one, and a list always is
  end
  if is_unknown or host.limit ~= limit or is_compact and new > 0 then
    host.limit = limit
    set_host(host)
  end
  if new > 0 then
    place(host)
  end
  added = added + new
  at = at + 7 + 2 * count
end
state.queued, state.added = state.queued + added, state.added + added
return report(added)
""",
)

# ARGV from 5: most URLs to claim, microseconds of the lease, nonce, most leased URLs per host (or empty: as added),
# nonces of calls of this worker without a reply (by spaces): nothing was sent for their claims, which are queued again;
# most slots per registered domain (or empty: no limit); then pairs of a registered domain and its slots in use. With 0
# URLs to claim, the script only takes back expired leases and reports. Registered domains take turns: one that was
# served goes behind all that wait.
CLAIM = lua(
    PRELUDE,
    QUEUES,
    CLAIMS,
    r"""
local MOST = 100
local wanted, lease, nonce, limit = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local share, held, mine = tonumber(ARGV[10]) or math.huge, {}, base .. ':mine:' .. worker
local claimed, line, touched, served, full = {}, {}, {}, {}, {}
for at = 11, #ARGV, 2 do
  held[ARGV[at]] = tonumber(ARGV[at + 1])
  if held[ARGV[at]] >= share then
    full[#full + 1], full[ARGV[at]] = ARGV[at], true
  end
end

for lost in string.gmatch(ARGV[9], '%S+') do
  for _, ticket in ipairs(redis.call('HKEYS', CLAIMS)) do
    local claim, host = end_claim(ticket, lost)
    if claim then
      wait_again(claim, host, claim.rank, claim.tries)
      set_host(host)
      place(host)
    end
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

-- Queue fresh hosts with the others of their domain, and new domains with all others, as many as may have their turn.
local function take_fresh()
  local most = wanted + #full
  for _ = 1, MOST + most do
    local head = redis.call('LINDEX', FRESH, 0)
    local moment = head and struct.unpack('>d', head)
    if not head or moment > now - grace or redis.call('ZCOUNT', DUE, '-inf', moment) >= most then
      return
    end
    redis.call('LPOP', FRESH)
    local name, lone = string.sub(head, 9), ''
    if string.byte(name) == 0x92 then -- an array; entries of earlier versions are names alone
      name, lone = unpack(cmsgpack.unpack(name))
    end
    local host = get_host(name)
    if lone ~= '' then
      put(host, string.sub(lone, 1, 8), string.sub(lone, 9, 14), cmsgpack.unpack(string.sub(lone, 15)))
    end
    local turn = redis.call('ZSCORE', DUE, host.site) -- which the domain keeps
    host.is_fresh = false
    set_host(host)
    place(host, moment)
    if turn then
      redis.call('ZADD', DUE, turn, host.site)
    end
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
  if host.lone then
    host.lone = nil
  else
    redis.call('ZREM', URLS, member)
  end
  local at = #host.name + 1
  local rank, seq = string.sub(member, at + 1, at + 8), string.sub(member, at + 9, at + 14)
  local bundle = cmsgpack.unpack(string.sub(member, at + 15))
  local parent, tries, target = bundle[1], bundle[2], bundle[3]
  if bundle[4] then
    table.remove(bundle, 3)
    put(host, rank, struct.pack('>I6', struct.unpack('>I6', seq) + 1), bundle)
  end
  state.ticket, state.queued, is_changed = state.ticket + 1, state.queued - 1, true
  local ticket = string.format('%.0f', state.ticket)
  redis.call('HSET', CLAIMS, ticket, cmsgpack.pack({host.name, rank, seq, tries, parent, target, nonce}))
  redis.call('ZADD', LEASES, now + lease, ticket)
  host.out, host.owner = host.out + 1, worker
  claimed[#claimed + 1] = {state.ticket, host.name, target, (struct.unpack('>I8', rank)), parent, tries, host.pages}
end

if wanted > 0 then
  take_fresh()
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
return report(claimed, full)
""",
)

# ARGV from 5, for each claim: ticket, nonce, end (done, failed, back, or page: done and counted), microseconds until
# the host is due (or empty), and the reason of a failure or the rank of a URL that goes back.
END = lua(
    PRELUDE,
    QUEUES,
    CLAIMS,
    r"""
local MOST, FAILURES = 10000, base .. ':failures'
local ended = {}
for at = 5, #ARGV, 5 do
  local how, after, word = ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  local claim, host = end_claim(ARGV[at], ARGV[at + 1])
  ended[#ended + 1] = claim and 1 or 0
  if claim then
    if how == 'logged' then
      local entry = {math.floor(now / 1000000), host.name, claim.rank, claim.target, claim.parent}
      redis.call('RPUSH', base .. ':log:' .. worker, cmsgpack.pack(entry))
      how = 'page'
    end
    if how == 'page' then
      how, host.pages = 'done', host.pages + 1
    end
    if how == 'back' then
      wait_again(claim, host, word, claim.tries)
    else
      state[how] = state[how] + 1
    end
    if how == 'failed' and redis.call('LLEN', FAILURES) < MOST then
      redis.call('RPUSH', FAILURES, cmsgpack.pack({now, host.name, claim.target, word, claim.parent}))
      redis.call('HSET', base .. ':ranks', host.name .. claim.target, claim.rank)
    end
    if after then
      host.due = now + after
    end
    set_host(host)
    place(host)
  end
end
return report(ended)
""",
)

# ARGV from 5: fingerprint of the page to skip, fingerprint of the page it is skipped for. One is empty if it is in
# another partition. The result is whether the latter was skipped itself: then the former is not.
PASS_OVER = lua(
    PRELUDE,
    SEEN,
    r"""
local url, other = ARGV[5], ARGV[6]
local was_left_out = other ~= '' and is_seen(other, state.level)
if url ~= '' and not was_left_out then
  is_new(url)
end
return report(was_left_out and 1 or 0)
""",
)

# ARGV from 5: whether to mark (1 or 0), then fingerprints of URLs without a page. The result is which of them were not
# marked before.
REPORT = lua(
    PRELUDE,
    SEEN,
    r"""
local marks, new = ARGV[5] == '1', {}
for at = 6, #ARGV do
  local is_old
  if marks then
    is_old = not is_new(ARGV[at])
  else
    is_old = is_seen(ARGV[at], state.level)
  end
  new[at - 5] = is_old and 0 or 1
end
return report(new)
""",
)

# ARGV from 5: hosts. Those that are due later, and have no leased URL, are due now.
HASTEN = lua(
    PRELUDE,
    QUEUES,
    r"""
for at = 5, #ARGV do
  local host = get_host(ARGV[at])
  if host.due > now and host.out == 0 then
    host.due, is_changed = now, true
    redis.call('ZREM', DUE .. ':' .. host.site, host.name)
    set_host(host)
    place(host)
  end
end
return report(0)
""",
)

# ARGV from 5: ticket, nonce, microseconds of the lease.
RENEW = lua(
    PRELUDE,
    QUEUES,
    CLAIMS,
    r"""
local is_valid = get_claim(ARGV[5], ARGV[6]) ~= nil
if is_valid then
  redis.call('ZADD', LEASES, 'XX', now + ARGV[7], ARGV[5])
  is_changed = true
end
return report(is_valid and 1 or 0)
""",
)

# ARGV from 5: name of a list of finished URLs after the base, counter of these in the state (done or failed), rank of
# failed URLs that have none; then positions, each with its entry. Entries that changed meanwhile are skipped. The
# result is the number of queued URLs.
REQUEUE = lua(
    PRELUDE,
    QUEUES,
    r"""
local key, how, count = base .. ARGV[5], ARGV[6], 0
for at = 8, #ARGV, 2 do
  if redis.call('LINDEX', key, ARGV[at]) == ARGV[at + 1] then
    redis.call('LSET', key, ARGV[at], '')
    local entry = cmsgpack.unpack(ARGV[at + 1])
    local name, rank, target, parent = entry[2], entry[3], entry[4], entry[5] or '' -- none in earlier versions
    if how == 'failed' then
      target = entry[3]
      rank = redis.call('HGET', base .. ':ranks', name .. target) or ARGV[7]
      redis.call('HDEL', base .. ':ranks', name .. target)
    end
    local host = get_host(name)
    if how == 'done' then
      host.pages = math.max(0, host.pages - 1)
    end
    state.seq = state.seq + 1
    put(host, rank, struct.pack('>I6', state.seq), {parent, 0, target})
    set_host(host)
    place(host)
    count = count + 1
  end
end
redis.call('LREM', key, 0, '')
state.queued, state[how], is_changed = state.queued + count, state[how] - count, true
return report(count)
""",
)

# Return the instant of the last change, and the counts of `Counts` in their order, without any change.
PEEK = lua(
    r"""
local base = KEYS[1]
local found = redis.call('HMGET', base .. ':state', 'last', 'queued', 'done', 'failed')
for place = 1, 4 do
  found[place] = tonumber(found[place]) or 0
end
local leased, hosts = redis.call('HLEN', base .. ':claims'), redis.call('HLEN', base .. ':hosts')
return {found[1], found[2], leased, found[3], found[4], hosts}
"""
)

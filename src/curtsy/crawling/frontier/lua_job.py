"""Lua scripts of the keys that all partitions of a shared job have in common. `redis_jobs.py` lists these keys."""

from __future__ import annotations

from curtsy.crawling.frontier.redis_codec import lua

_TIME = r"""
local time = redis.call('TIME')
local present = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[1]) or present
local META = KEYS[1] .. ':meta'
"""

# ARGV[2] is the job's creation time: a worker of an earlier or forgotten job of this name gets an error.
_ALIVE = r"""
if redis.call('HGET', KEYS[1] .. ':meta', 'born') ~= ARGV[2] then
  return redis.error_reply('JOBGONE there is no such job')
end
"""

# ARGV: now, born, worker, microseconds for which a worker counts as present, format that the worker can write, the
# number of URLs that it has leased, the number of workers to keep in `seen`, and 1 at the first heartbeat of a process,
# else 0. Returns the job's format, the pages of all workers, the present workers, the leased URLs of each (nothing for
# an earlier version), and the microseconds since the last heartbeat of the latest worker that ended without signing off
# (-1 without one). Once all present workers can write a later format, it becomes the job's.
BEAT = lua(
    _TIME,
    _ALIVE,
    r"""
local key, versions, format = KEYS[1] .. ':workers', KEYS[1] .. ':versions', tonumber(ARGV[5])
local leased = KEYS[1] .. ':leased'
local lost = redis.call('ZREVRANGEBYSCORE', key, now - ARGV[4], '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if ARGV[8] == '1' then -- an earlier process of this name has not signed off, so it was killed
  lost = redis.call('ZSCORE', key, ARGV[3]) or lost
end
if lost then
  redis.call('HSET', META, 'lost', lost)
end
lost = tonumber(redis.call('HGET', META, 'lost'))
redis.call('ZREMRANGEBYSCORE', key, '-inf', now - ARGV[4])
redis.call('ZADD', key, now, ARGV[3])
redis.call('HSET', leased, ARGV[3], ARGV[6])
redis.call('ZADD', KEYS[1] .. ':seen', now, ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[1] .. ':seen', 0, -1 - ARGV[7])
local workers = redis.call('ZRANGE', key, 0, -1)
local written = tonumber(redis.call('HGET', META, 'format'))
if written < format then
  redis.call('HSET', versions, ARGV[3], format)
  local are_new = true
  for _, worker in ipairs(workers) do
    are_new = are_new and (tonumber(redis.call('HGET', versions, worker)) or 0) >= format
  end
  if are_new then
    written = format
    redis.call('HSET', META, 'format', format)
    redis.call('DEL', versions)
  end
end
local pages = tonumber(redis.call('HGET', META, 'pages')) or 0
return {written, pages, workers, redis.call('HMGET', leased, unpack(workers)), lost and now - lost or -1}
""",
)

# ARGV: now, born, name of a worker's pages, their number (or empty); the process that calls and the number of its call
# (or both empty); the fingerprints of pages that it has written and whose claims others had before their ends (by
# spaces), and the number of pages that it writes with these notes; for each, its fingerprint and ticket; then names and
# values. Returns the pages of all workers, which never decrease. A call that arrives after a later one of its process,
# or after another process has read the notes in its place (READ), changes nothing. If others took over some of the
# pages (TAKE), nothing is stored, and their positions are returned.
NOTE = lua(
    _ALIVE,
    r"""
local meta, pages, taken = KEYS[1] .. ':meta', KEYS[1] .. ':pages', KEYS[1] .. ':taken'
local written, caller, number, first = KEYS[1] .. ':written', ARGV[5], ARGV[6], 9 + 2 * ARGV[8]
local MOST = 1000 -- Lua's `unpack` is limited to some thousands of values.
if caller ~= '' then
  local last, marks = string.match(redis.call('HGET', written, caller) or '0', '(%d+)(.*)')
  if tonumber(number) < tonumber(last) then
    return redis.error_reply('LATE a later call has been answered')
  end
  if first > 9 then
    local is_any_taken, lost, own = redis.call('EXISTS', taken) == 1, {}, {'', ARGV[7]}
    for at = 9, first - 1, 2 do
      local ticket = is_any_taken and redis.call('HGET', taken, ARGV[at])
      if ticket and ticket ~= ARGV[at + 1] then
        lost[#lost + 1] = (at - 9) / 2
      end
      own[#own + 1] = ARGV[at]
    end
    if #lost > 0 then
      return lost
    end
    marks = table.concat(own, ' ')
  end
  redis.call('HSET', written, caller, number .. marks)
end
if ARGV[4] ~= '' then
  local more = ARGV[4] - (tonumber(redis.call('HGET', pages, ARGV[3])) or 0)
  if more > 0 then
    redis.call('HSET', pages, ARGV[3], ARGV[4])
    redis.call('HINCRBY', meta, 'pages', more)
  end
end
for at = first, #ARGV, MOST do
  redis.call('HSET', KEYS[1] .. ':notes', unpack(ARGV, at, math.min(at + MOST - 1, #ARGV)))
end
return tonumber(redis.call('HGET', meta, 'pages')) or 0
""",
)

# ARGV: now, born, the process that calls, the number of its call, a worker whose outputs it has from now on, and 1 if
# it is that worker (else it has them only for a moment). Returns all notes. Earlier calls of this process, and all
# calls of the process that had these outputs before, change nothing from now on. Its written pages stay marked.
READ = lua(
    _ALIVE,
    r"""
local written, callers, caller, worker = KEYS[1] .. ':written', KEYS[1] .. ':callers', ARGV[3], ARGV[5]
local function marks_of(process)
  return string.match(redis.call('HGET', written, process) or '0', '(%d+)(.*)')
end
local last, marks = marks_of(caller)
if tonumber(ARGV[4]) < tonumber(last) then
  return redis.error_reply('LATE a later call has been answered')
end
redis.call('HSET', written, caller, ARGV[4] .. marks)
local before = redis.call('HGET', callers, worker)
if before and before ~= caller then
  local _, others = marks_of(before)
  redis.call('HSET', written, before, '9007199254740992' .. others)
end
if ARGV[6] == '1' then
  redis.call('HSET', callers, worker, caller)
else
  redis.call('HDEL', callers, worker)
end
return redis.call('HGETALL', KEYS[1] .. ':notes')
""",
)

# ARGV: now, born; then fingerprints of claimed URLs whose leases had expired, each with its new ticket. Returns for
# each 1 if another worker has written its page. Else only the owner of this ticket can write it from now on.
TAKE = lua(
    _ALIVE,
    r"""
local is_written, found = {}, {}
for _, marks in ipairs(redis.call('HVALS', KEYS[1] .. ':written')) do
  for mark in string.gmatch(marks, ' (%S+)') do
    is_written[mark] = true
  end
end
for at = 3, #ARGV, 2 do
  found[#found + 1] = is_written[ARGV[at]] and 1 or 0
  if not is_written[ARGV[at]] then
    redis.call('HSET', KEYS[1] .. ':taken', ARGV[at], ARGV[at + 1])
  end
end
return found
""",
)

# ARGV: now, born; then fingerprints of finished URLs that are queued again. Forgets which worker wrote their pages.
FORGET = lua(
    _ALIVE,
    r"""
local written, is_forgotten = KEYS[1] .. ':written', {}
for at = 3, #ARGV do
  is_forgotten[ARGV[at]] = true
  redis.call('HDEL', KEYS[1] .. ':taken', ARGV[at])
end
local found = redis.call('HGETALL', written)
for at = 1, #found, 2 do
  local kept = string.gsub(found[at + 1], ' (%d+)', function(mark)
    return is_forgotten[mark] and '' or nil
  end)
  if kept ~= found[at + 1] then
    redis.call('HSET', written, found[at], kept)
  end
end
return 1
""",
)

# ARGV: now. Returns the workers that have not signed off, each with the microseconds since its last heartbeat. Then the
# same of all workers that are remembered, and for each of these 1 if it has not signed off, else 0.
PRESENT = lua(
    _TIME,
    r"""
local function aged(key)
  local found = redis.call('ZRANGE', KEYS[1] .. key, 0, -1, 'WITHSCORES')
  for place = 2, #found, 2 do
    found[place] = now - found[place]
  end
  return found
end
local seen, are_left = aged(':seen'), {}
for place = 1, #seen, 2 do
  are_left[#are_left + 1] = redis.call('HEXISTS', KEYS[1] .. ':leased', seen[place])
end
return {aged(':workers'), seen, are_left}
""",
)

# ARGV: now, microseconds for which a worker counts as present, worker, partitions of a new job, format, and 1 to start
# over. The creation time is always the server's, also in tests: no two jobs of one name may share keys. Returns the
# creation time, number of partitions, format, number of workers that prevent a start over, and 1 if the hash tags of
# the partitions are even.
OPEN = lua(
    _TIME,
    r"""
local workers = KEYS[1] .. ':workers'
local worker, is_restart = ARGV[3], ARGV[6] == '1'
local born, partitions, format, even = unpack(redis.call('HMGET', META, 'born', 'partitions', 'format', 'even'))
if born and is_restart then
  redis.call('ZREM', workers, worker)
  local others = redis.call('ZCOUNT', workers, now - ARGV[2], '+inf')
  if others > 0 then
    return {born, partitions, format, others, even or 0}
  end
end
if not born or is_restart then
  born, partitions, format, even = string.format('%.0f', present), ARGV[4], ARGV[5], 1
  for _, name in ipairs({'notes', 'pages', 'versions', 'leased', 'seen', 'written', 'callers', 'taken'}) do
    redis.call('DEL', KEYS[1] .. ':' .. name)
  end
  redis.call('DEL', META, workers)
  redis.call('HSET', META, 'born', born, 'partitions', partitions, 'format', format, 'even', even)
end
return {born, partitions, format, 0, even or 0}
""",
)

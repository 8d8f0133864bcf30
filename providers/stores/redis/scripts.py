"""Lua scripts that Redis runs atomically. Every key of a script is in KEYS, as a cluster requires.

Scripts use the clock of Redis, in milliseconds. The cache uses the times that its writers give.
"""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple


class RedisScript(NamedTuple):
    """A Lua script, and the SHA-1 by which Redis finds it after it was loaded."""

    text: str
    sha: str


def script(text: str) -> RedisScript:
    """Return the script of a text."""
    return RedisScript(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


_WINDOW = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local seconds, amount, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local number = math.floor(now / seconds)
local passed = now / seconds - number
local stored = redis.call('HMGET', KEYS[1], 'number', 'used', 'before')
local used, before = 0, 0
if stored[1] then
  local known = tonumber(stored[1])
  if known > number then number, passed = known, 0 end -- the clock of Redis was set back
  if known == number then used, before = tonumber(stored[2]), tonumber(stored[3])
  elseif known == number - 1 then before = tonumber(stored[2]) end
end
local function save()
  redis.call('HSET', KEYS[1], 'number', string.format('%.0f', number), 'used', string.format('%.0f', used),
    'before', string.format('%.0f', before))
  redis.call('PEXPIRE', KEYS[1], math.ceil((2 - passed) * seconds * 1000) + 1)
end
local function result(ok)
  return {ok, string.format('%.0f', number), string.format('%.0f', used), string.format('%.0f', before),
    string.format('%.17g', passed)}
end
"""

TAKE = script(
    _WINDOW
    + """
if used + before * (1 - passed) + cost > amount then return result(0) end
used = used + cost
save()
return result(1)
"""
)

GIVE_BACK = script(
    _WINDOW
    + """
if not stored[1] then return result(1) end
local from_used = math.min(cost, used)
used, before = used - from_used, math.max(0, before - (cost - from_used))
save()
return result(1)
"""
)

PEEK = script(_WINDOW + "return result(0)")

_NOW = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
"""

ACQUIRE = script(
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last[2] + 1)) -- the latest end of all permits, not the end of this one
return 1
"""
)

RELEASE = script(
    _NOW
    + """
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
return tonumber(ends) > now and 1 or 0
"""
)

HOLDERS = script(_NOW + "return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), '+inf')")

# KEYS: the entry, then its tags. ARGV: time to live in ms, key, header, value, then the names of the tags.
PUT = script(
    _NOW
    + """
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'header', ARGV[3], 'value', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
for i = 2, #KEYS do
  redis.call('HSET', KEYS[1], 'tag:' .. ARGV[i + 3], '')
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  redis.call('ZADD', KEYS[i], now + tonumber(ARGV[1]), ARGV[2])
  local last = redis.call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')
  redis.call('PEXPIREAT', KEYS[i], string.format('%.0f', last[2] + 1))
end
return 1
"""
)

# KEYS: the tag, then entries that had it. ARGV: the tag, then their keys. An entry that has lost the tag stays.
DROP_TAGGED = script(
    """
local gone = {}
for i = 2, #KEYS do
  if redis.call('HEXISTS', KEYS[i], 'tag:' .. ARGV[1]) == 1 then
    gone[#gone + 1] = redis.call('HGET', KEYS[i], 'header')
    redis.call('DEL', KEYS[i])
  end
  redis.call('ZREM', KEYS[1], ARGV[i])
end
return gone
"""
)

# KEYS: the consents of a user. ARGV: now in seconds, the field, the consent. The hash expires with the last consent.
GRANT = script(
    """
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
local now, last = tonumber(ARGV[1]), 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local ends = cjson.decode(all[i + 1])['expires_at']
  if ends == cjson.null then last = nil
  elseif ends <= now then redis.call('HDEL', KEYS[1], all[i])
  elseif last then last = math.max(last, ends) end
end
if not last then redis.call('PERSIST', KEYS[1])
elseif last > 0 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(math.ceil((last - now) * 1000) + 1, 1e15)))
end
return 1
"""
)

-- Takes a lock, or sets how often its holder holds it.
--
-- KEYS  1  the lock
-- ARGV  1  lease in milliseconds
--       2  holder field
--       3  how many holds there are then: 1 takes a free lock, more needs the holder's own field
-- Reply    nil      it is the holder's; its TTL is at least the lease
--          integer  somebody else's: the TTL left in milliseconds, -1 if it has none
--          +GONE    more than 1 was asked for, and the holder's field is not there
--
-- Safe to send again. Whatever can fail is tried before the first write that lasts.

local key, lease, holder, count = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- Fails here if the key holds another type.
local held = redis.call('HEXISTS', key, holder) == 1
local ttl = redis.call('PTTL', key)

if held then
  if ttl < tonumber(lease) then
    redis.call('PEXPIRE', key, lease)
  end
  if count ~= '1' then
    redis.call('HSET', key, holder, count)
  end
  return nil
end

if count ~= '1' then
  return redis.status_reply('GONE')
end

if ttl ~= -2 then
  return ttl
end

-- A lock without a TTL must not come into being. Since Redis 7 the right to set one can be asked for. Before, it has to be
-- tried: there is no key yet, so that changes nothing (but counts as a write, after which HSET is not refused for OOM).
if not redis.acl_check_cmd then
  redis.call('PEXPIRE', key, lease)
elseif not redis.acl_check_cmd('PEXPIRE', key, lease) then
  return redis.error_reply("NOPERM this user has no permissions to run the 'pexpire' command on this key")
end
redis.call('HSET', key, holder, count)
redis.call('PEXPIRE', key, lease)
return nil

-- Gives back one hold, or the lock.
--
-- KEYS  1  the lock
-- ARGV  1  channel (no key, so that no right to it as a key is needed)
--       2  command that publishes
--       3  holder field
--       4  how many holds remain; 0 gives the lock back
-- Reply    nil      there is no key
--          bulk     the holder's field is not there: whose is
--          +KEPT    that many holds remain
--          integer  the key is gone: how many subscribers heard the message, -1 if it could not be published
--
-- Safe to send again. Giving the lock back needs no memory and does not depend on the right to publish.

local key, channel, publish, holder, remaining = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HEXISTS', key, holder) == 0 then
  return redis.call('HKEYS', key)[1]
end

if remaining ~= '0' then
  redis.call('HSET', key, holder, remaining)
  return redis.status_reply('KEPT')
end

redis.call('DEL', key)
local heard = redis.pcall(publish, channel, '0')
if type(heard) == 'number' then
  return heard
end
return -1

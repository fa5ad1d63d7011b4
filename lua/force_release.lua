-- Removes a lock, whoever holds it.
--
-- KEYS  1  the lock
-- ARGV  1  channel
--       2  command that publishes
-- Reply    nil      there was no key
--          integer  the key is gone: how many subscribers heard the message, -1 if it could not be published
--
-- A key of another type is an error, and stays as it is.

local key, channel, publish = KEYS[1], ARGV[1], ARGV[2]

if redis.call('HLEN', key) == 0 then
  return nil
end

redis.call('DEL', key)
local heard = redis.pcall(publish, channel, '0')
if type(heard) == 'number' then
  return heard
end
return -1

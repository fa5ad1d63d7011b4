-- Raises the TTL of every key whose holder is still there.
--
-- KEYS  1..n    the locks
-- ARGV  1       lease in milliseconds
--       1+i     holder field of lock i
-- Reply         array of n:  1     its TTL is at least the lease
--                            0     the holder's field is not there
--                            bulk  this key alone failed: the error
--
-- Safe to send again. One key's failure does not stop the others. Never lowers a TTL, never creates anything.

local lease = ARGV[1]
local least = tonumber(lease)

local function failed(reply)
  return type(reply) == 'table' and reply.err
end

local function renew(key, holder)
  local held = redis.pcall('HEXISTS', key, holder)
  if failed(held) then
    return held.err
  end
  if held == 0 then
    return 0
  end
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then
    return ttl.err
  end
  if ttl >= least then
    return 1
  end
  local raised = redis.pcall('PEXPIRE', key, lease)
  if failed(raised) then
    return raised.err
  end
  return raised
end

local replies = {}
for i = 1, #KEYS do
  replies[i] = renew(KEYS[i], ARGV[i + 1])
end
return replies

-- Reads a lock at one moment.
--
-- KEYS  1  the lock
-- Reply    array: TTL in milliseconds (-1 none, -2 no key), then an array of holder field, count, holder field, count ...
--
-- A key of another type is an error.

return { redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]) }

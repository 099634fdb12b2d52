-- begin(attempt, step): a trainer attempt takes over, resuming after `step`; every lower attempt is fenced from here on.
-- -> {'ok', cursor, steps taken and not settled...}. The caller settles those up to `step` (their checkpoint is durable)
-- and requeues the later ones (their training is lost with the old attempt).
local attempt, current = tonumber(ARGV[1]), num(META, 'attempt')
if attempt < current then return {'fenced', current} end
incarnation()
redis.call('HSET', META, 'attempt', attempt, 'settled', ARGV[2], 'want', 0, 'finished', 0)
local steps = redis.call('ZRANGE', STEPS, 0, -1)
return {'ok', num(META, 'cursor'), unpack(steps)}

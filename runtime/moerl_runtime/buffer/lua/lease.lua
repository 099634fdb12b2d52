-- lease(worker, version, ttl_ms, batch, max_staleness): one group, an expired lease before new work.
-- -> {'ok', uid, incarnation, epoch, index, min_version} | {'none', min} | {'old', min} | {'finished', 0}
-- A worker on a policy that would be inadmissible at the group's estimated turn is told which version it needs.
local worker, version, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local batch, staleness = tonumber(ARGV[4]), tonumber(ARGV[5])
if num(META, 'finished') == 1 then return {'finished', 0} end
local now = now_ms()
local active = redis.call('ZCOUNT', LEASES, '(' .. now, '+inf')
local before = redis.call('ZCARD', READY) + active
local least = math.max(0, next_version() + math.floor(before / batch) - staleness)
if version < least then return {'old', least} end

local uid = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1)[1]
if uid then
  end_lease(uid, 'expired')
else
  uid = redis.call('ZPOPMIN', TODO)[1]
  if not uid then return {'none', least} end
  move(uid, 'todo', 'leased')
end
local epoch = redis.call('HINCRBY', group_key(uid), 'epoch', 1)
redis.call('HSET', group_key(uid), 'worker', worker)
redis.call('ZADD', LEASES, now + ttl, uid)
count('lease:active', 1)
count('lease:granted', 1)
return {'ok', tonumber(uid), incarnation(), epoch, num(group_key(uid), 'index'), least}

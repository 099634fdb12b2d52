-- renew(uid, incarnation, epoch, ttl_ms) -> 1, or 0 when the lease is no longer this worker's.
-- A lease that ran out but went to nobody else is renewed: its work is still the only copy. One that its own commit has
-- ended meanwhile is no loss either.
local status = lease_status(ARGV[1], ARGV[2], ARGV[3])
if status == 'duplicate' then return 1 end
if status ~= 'ok' then return 0 end
redis.call('ZADD', LEASES, 'XX', now_ms() + tonumber(ARGV[4]), ARGV[1])
return 1

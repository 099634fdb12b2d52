-- release(uid, incarnation, epoch) -> 1, or 0 when the lease is no longer this worker's. The lowest uid is leased
-- first, so a released group is in front of newer ones.
local uid = ARGV[1]
if lease_status(uid, ARGV[2], ARGV[3]) ~= 'ok' then return 0 end
end_lease(uid, 'released')
redis.call('ZADD', TODO, uid, uid)
move(uid, 'leased', 'todo')
return 1

-- fail(uid, incarnation, epoch, reason, max_failures): the group itself cannot be done (not infrastructure).
-- -> 'todo' (another try) | 'failed' (no more) | 'fenced'
local uid = ARGV[1]
if lease_status(uid, ARGV[2], ARGV[3]) ~= 'ok' then return 'fenced' end
end_lease(uid, 'failed')
redis.call('HSET', META, 'lastFailure', uid .. ': ' .. ARGV[4])
if redis.call('HINCRBY', group_key(uid), 'failures', 1) >= tonumber(ARGV[5]) then
  close(uid, 'leased', 'failed')
  return 'failed'
end
redis.call('ZADD', TODO, uid, uid)
move(uid, 'leased', 'todo')
return 'todo'

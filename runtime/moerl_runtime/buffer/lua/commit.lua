-- commit(uid, incarnation, epoch, oldest_version, tokens, usable): admits a finished group whose payload is stored.
-- -> 'admitted' | 'filtered' (fewer than two usable samples: no baseline) | 'duplicate' | 'fenced' | 'closed' | 'missing'
local uid, epoch, tokens = ARGV[1], ARGV[3], tonumber(ARGV[5])
local status = lease_status(uid, ARGV[2], epoch)
if status ~= 'ok' then
  count('refused:' .. status, 1)
  return status
end
local payload = payload_key(uid, epoch)
if redis.call('EXISTS', payload) == 0 then return 'missing' end
end_lease(uid, 'committed')
count('tokens:admitted', tokens)
if tonumber(ARGV[6]) < 2 then
  count('tokens:filtered', tokens)
  close(uid, 'leased', 'filtered')
  return 'filtered'
end
redis.call('PERSIST', payload)
local seq = redis.call('HINCRBY', META, 'admitted', 1)
redis.call('HSET', group_key(uid), 'oldest', ARGV[4], 'tokens', tokens, 'seq', seq)
redis.call('ZADD', READY, seq, uid)
move(uid, 'leased', 'ready')
return 'admitted'

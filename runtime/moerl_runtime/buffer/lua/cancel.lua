-- cancel(uid, attempt): one open group is not wanted any more. -> {'ok', 1}, {'ok', 0} if it is no longer open.
local refusal = attempt_refusal(ARGV[2])
if refusal then return refusal end
local uid = ARGV[1]
local state = redis.call('HGET', group_key(uid), 'state')
if state == 'leased' then
  end_lease(uid, 'cancelled')
elseif state == 'todo' then
  redis.call('ZREM', TODO, uid)
elseif state == 'ready' then
  redis.call('ZREM', READY, uid)
  count('tokens:cancelled', num(group_key(uid), 'tokens'))
else
  return {'ok', 0}
end
close(uid, state, 'cancelled')
return {'ok', 1}

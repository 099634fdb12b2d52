-- settle(step, attempt): a durable checkpoint holds what was trained at `step`: its groups are consumed, payload freed.
-- -> {'ok', n}
local refusal = attempt_refusal(ARGV[2])
if refusal then return refusal end
local step = ARGV[1]
local uids = redis.call('LRANGE', taken_key(step), 0, -1)
for _, uid in ipairs(uids) do
  count('tokens:consumed', num(group_key(uid), 'tokens'))
  close(uid, 'taken', 'consumed')
end
redis.call('DEL', taken_key(step))
redis.call('ZREM', STEPS, step)
if tonumber(step) > num(META, 'settled') then redis.call('HSET', META, 'settled', step) end
return {'ok', #uids}

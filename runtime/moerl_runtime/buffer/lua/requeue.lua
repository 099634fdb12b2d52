-- requeue(step, attempt): groups taken at `step` by a lost attempt become ready again, at their old place in the order.
-- -> {'ok', n}
local refusal = attempt_refusal(ARGV[2])
if refusal then return refusal end
local step = ARGV[1]
local uids = redis.call('LRANGE', taken_key(step), 0, -1)
for _, uid in ipairs(uids) do
  redis.call('ZADD', READY, num(group_key(uid), 'seq'), uid)
  move(uid, 'taken', 'ready')
end
redis.call('DEL', taken_key(step))
redis.call('ZREM', STEPS, step)
return {'ok', #uids}

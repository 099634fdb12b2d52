-- take(step, attempt, batch, version, max_staleness): the ordered batch of one step, recorded, the same when asked again.
-- -> {'ok', uid, epoch, uid, epoch, ...} | {'wait', ready} | {'fenced', a} | {'unknown', a} | {'settled', s}
-- Groups whose oldest token is older than version - max_staleness are evicted; the rest go oldest admitted first.
local step, batch, version = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local refusal = attempt_refusal(ARGV[2])
if refusal then return refusal end
local answer = {'ok'}
local function tell(uids)
  for _, uid in ipairs(uids) do
    answer[#answer + 1] = tonumber(uid)
    answer[#answer + 1] = num(group_key(uid), 'epoch')
  end
  return answer
end
if redis.call('EXISTS', taken_key(step)) == 1 then return tell(redis.call('LRANGE', taken_key(step), 0, -1)) end
if tonumber(step) <= num(META, 'settled') then return {'settled', num(META, 'settled')} end

local least = version - tonumber(ARGV[5])
for _, uid in ipairs(redis.call('ZRANGE', READY, 0, -1)) do
  local group = redis.call('HMGET', group_key(uid), 'oldest', 'epoch', 'tokens')
  if tonumber(group[1]) < least then
    redis.call('ZREM', READY, uid)
    count('tokens:stale', tonumber(group[3]))
    close(uid, 'ready', 'stale')
  elseif redis.call('EXISTS', payload_key(uid, group[2])) == 0 then
    -- Somebody deleted the payload: generate the group again rather than fail every restart on it.
    redis.call('ZREM', READY, uid)
    redis.call('ZADD', TODO, uid, uid)
    count('tokens:lost', tonumber(group[3]))
    move(uid, 'ready', 'todo')
  end
end
if redis.call('ZCARD', READY) < batch then
  redis.call('HSET', META, 'want', version)
  return {'wait', redis.call('ZCARD', READY)}
end
local popped = redis.call('ZPOPMIN', READY, batch)
local uids = {}
for i = 1, #popped, 2 do
  uids[#uids + 1] = popped[i]
  redis.call('RPUSH', taken_key(step), popped[i])
  redis.call('HSET', group_key(popped[i]), 'step', step)
  move(popped[i], 'ready', 'taken')
end
redis.call('ZADD', STEPS, step, step)
redis.call('HSET', META, 'want', version + 1)
return tell(uids)

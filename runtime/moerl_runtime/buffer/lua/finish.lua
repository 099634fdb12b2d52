-- finish(attempt): no more groups are wanted. -> {'ok', open uids...}; the caller cancels each.
local refusal = attempt_refusal(ARGV[1])
if refusal then return refusal end
redis.call('HSET', META, 'finished', 1)
local answer = {'ok'}
for _, key in ipairs({TODO, LEASES, READY}) do
  for _, uid in ipairs(redis.call('ZRANGE', key, 0, -1)) do answer[#answer + 1] = tonumber(uid) end
end
return answer

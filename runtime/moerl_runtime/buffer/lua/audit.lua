-- audit(): recounts every structure at one moment. -> {todo, leased, ready, taken, closed, problems...}
-- Costs one look-up per resident group; the only script that reads them all.
local problems = {}
local function expect(what, counter, seen)
  if counter ~= seen then problems[#problems + 1] = what .. ': counted ' .. counter .. ', found ' .. seen end
end
local function check(uids, state)
  for _, uid in ipairs(uids) do
    local group = redis.call('HMGET', group_key(uid), 'state', 'epoch')
    if group[1] ~= state then
      problems[#problems + 1] = 'group ' .. uid .. ' is ' .. tostring(group[1]) .. ' but listed as ' .. state
    elseif state == 'ready' or state == 'taken' then
      local payload = payload_key(uid, group[2])
      if redis.call('EXISTS', payload) == 0 then
        problems[#problems + 1] = 'group ' .. uid .. ' has no payload'
      elseif redis.call('PTTL', payload) ~= -1 then
        problems[#problems + 1] = 'group ' .. uid .. ': its payload would expire'
      end
    end
  end
  return #uids
end
local seen = {
  todo = check(redis.call('ZRANGE', TODO, 0, -1), 'todo'),
  leased = check(redis.call('ZRANGE', LEASES, 0, -1), 'leased'),
  ready = check(redis.call('ZRANGE', READY, 0, -1), 'ready'),
  taken = 0,
}
for _, step in ipairs(redis.call('ZRANGE', STEPS, 0, -1)) do
  seen.taken = seen.taken + check(redis.call('LRANGE', taken_key(step), 0, -1), 'taken')
end
local closed = num(META, 'low') + redis.call('SCARD', CLOSED)
local sum, ended = closed, 0
for _, state in ipairs({'todo', 'leased', 'ready', 'taken'}) do
  expect(state, num(LEDGER, state), seen[state])
  sum = sum + seen[state]
end
for _, state in ipairs({'consumed', 'stale', 'filtered', 'failed', 'cancelled'}) do ended = ended + num(LEDGER, state) end
expect('closed', ended, closed)
expect('issued', num(LEDGER, 'issued'), sum)
expect('lease:active', num(LEDGER, 'lease:active'), seen.leased)
local leases = 0
for _, how in ipairs({'active', 'committed', 'released', 'expired', 'failed', 'cancelled'}) do
  leases = leases + num(LEDGER, 'lease:' .. how)
end
expect('lease:granted', num(LEDGER, 'lease:granted'), leases)
return {seen.todo, seen.leased, seen.ready, seen.taken, closed, unpack(problems)}

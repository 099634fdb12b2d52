-- issue(batch, max_staleness): one new group for the next dataset cursor -> {uid, cursor}; {0} when enough are open.
-- Open groups are bounded so that each can still be admissible when its turn comes: (staleness + 1) batches,
-- less the batches that the trainer is ahead of HEAD (it trains on one while HEAD does not show it yet).
local batch, staleness = tonumber(ARGV[1]), tonumber(ARGV[2])
if num(META, 'finished') == 1 then return {0} end
local _, behind = next_version()
local open = redis.call('ZCARD', TODO) + redis.call('ZCARD', LEASES) + redis.call('ZCARD', READY)
if open >= (staleness + 1 - behind) * batch then return {0} end
local uid = redis.call('HINCRBY', LEDGER, 'issued', 1)
local cursor = redis.call('HINCRBY', META, 'cursor', 1) - 1
redis.call('HSET', group_key(uid), 'state', 'todo', 'epoch', 0, 'index', cursor, 'failures', 0)
redis.call('ZADD', TODO, uid, uid)
count('todo', 1)
return {uid, cursor}

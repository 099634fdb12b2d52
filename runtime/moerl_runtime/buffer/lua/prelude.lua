-- Put in front of every script: key names, the server's clock, and the two ways a group changes state.
-- KEYS[1] is the base of all keys: one control server holds them all, so no script can cross a cluster slot.
local base = KEYS[1]
local META, LEDGER, HEAD = base .. ':meta', base .. ':ledger', base .. ':head'
local TODO, LEASES, READY = base .. ':todo', base .. ':leases', base .. ':ready'
local CLOSED, STEPS = base .. ':closed', base .. ':steps'

local function group_key(uid) return base .. ':group:' .. uid end
local function payload_key(uid, epoch) return base .. ':payload:' .. uid .. ':' .. epoch end
local function taken_key(step) return base .. ':taken:' .. step end

local function num(key, field) return tonumber(redis.call('HGET', key, field) or 0) end
local function count(field, n) redis.call('HINCRBY', LEDGER, field, n) end

-- The time of this buffer's first use: a buffer that was lost and came back empty numbers its groups anew, and the
-- leases of the old one must not fit.
local function incarnation()
  local known = num(META, 'incarnation')
  if known == 0 then
    known = tonumber(redis.call('TIME')[1])
    redis.call('HSET', META, 'incarnation', known)
  end
  return known
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The state and its counters change together, here and in close() only.
local function move(uid, from, to)
  redis.call('HSET', group_key(uid), 'state', to)
  count(from, -1)
  count(to, 1)
end

-- Ends a group for good: its record and payload go, its id joins the closed ones (a low-water mark plus exceptions).
local function close(uid, from, to)
  local epoch = redis.call('HGET', group_key(uid), 'epoch')
  redis.call('UNLINK', group_key(uid), payload_key(uid, epoch))
  count(from, -1)
  count(to, 1)
  redis.call('SADD', CLOSED, uid)
  local low = num(META, 'low')
  while redis.call('SREM', CLOSED, low + 1) == 1 do low = low + 1 end
  redis.call('HSET', META, 'low', low)
end

local function is_closed(uid)
  uid = tonumber(uid)
  if uid <= num(META, 'low') then return true end
  return redis.call('SISMEMBER', CLOSED, uid) == 1
end

-- 'ok' if (incarnation, epoch) still owns the lease, else why not.
local function lease_status(uid, born, epoch)
  if tonumber(born) ~= incarnation() then return 'fenced' end
  local record = redis.call('HMGET', group_key(uid), 'state', 'epoch')
  if not record[1] then return is_closed(uid) and 'closed' or 'fenced' end
  if record[2] ~= epoch then return 'fenced' end
  if record[1] == 'leased' then return 'ok' end
  if record[1] == 'ready' or record[1] == 'taken' then return 'duplicate' end
  return 'fenced'
end

local function end_lease(uid, how)
  redis.call('ZREM', LEASES, uid)
  count('lease:active', -1)
  count('lease:' .. how, 1)
end

-- nil if this is the current trainer attempt, else the refusal to return.
local function attempt_refusal(attempt)
  local current = num(META, 'attempt')
  attempt = tonumber(attempt)
  if attempt < current then return {'fenced', current} end
  if attempt > current then return {'unknown', current} end
  return nil
end

-- The trainer version at which the next batch will be consumed, and how far HEAD is behind it.
local function next_version()
  local head = num(HEAD, 'version')
  local want = math.max(head, num(META, 'want'))
  return want, want - head
end

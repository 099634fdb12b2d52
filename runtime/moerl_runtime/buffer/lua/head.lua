-- head(attempt, version, step, manifest_key): moves HEAD only to a higher (attempt, version); versions are never reused.
-- -> {'ok', 1} if HEAD now is exactly this publish, {'ok', 0} if it already is further
local refusal = attempt_refusal(ARGV[1])
if refusal then return refusal end
local version = tonumber(ARGV[2])
local current = redis.call('HMGET', HEAD, 'attempt', 'version', 'manifest')
if current[1] and version <= tonumber(current[2]) then
  local same = current[1] == ARGV[1] and version == tonumber(current[2]) and current[3] == ARGV[4]
  return {'ok', same and 1 or 0}
end
redis.call('HSET', HEAD, 'attempt', ARGV[1], 'version', version, 'step', ARGV[3], 'manifest', ARGV[4])
return {'ok', 1}

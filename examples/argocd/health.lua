-- When Argo CD calls a MoERLJob healthy. Lua 5.1; the answer is one of Healthy, Progressing, Degraded, Suspended.
hs = {status = "Progressing", message = "waiting for status"}
local status = obj.status
if status == nil or status.conditions == nil then return hs end
if status.observedGeneration ~= obj.metadata.generation then
  hs.message = "spec not observed yet"
  return hs
end
local conditions = {}
for _, each in ipairs(status.conditions) do conditions[each.type] = each end
local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end
local function said(kind, otherwise)
  local message = conditions[kind].message
  if message == nil or message == "" then return otherwise end
  return message
end
if is("Failed", "True") then return {status = "Degraded", message = said("Failed", "Failed")} end
if is("Complete", "True") then return {status = "Healthy", message = said("Complete", "Complete")} end
if is("Accepted", "False") then return {status = "Degraded", message = said("Accepted", "InvalidSpec")} end
if is("Suspended", "True") then return {status = "Suspended", message = said("Suspended", "Suspended")} end
if is("Degraded", "True") then return {status = "Degraded", message = said("Degraded", "Degraded")} end
if is("Ready", "True") then return {status = "Healthy", message = said("Ready", "Running")} end
if conditions["Ready"] ~= nil then hs.message = said("Ready", conditions["Ready"].reason or "not ready") end
return hs

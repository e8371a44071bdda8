-- Health of Cluster, Topic and ConsumerGroup for Argo CD, from their conditions (kstatus').
-- A rolling change is Progressing, never Degraded; only Stalled is: what waits for a person.
local health = {status = "Progressing", message = "the operator has not looked at this yet"}
if obj.metadata.deletionTimestamp ~= nil then
  health.message = "being deleted"
  return health
end
if obj.status == nil or obj.status.conditions == nil then
  return health
end
local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local ready, reconciling, stalled = conditions.Ready, conditions.Reconciling, conditions.Stalled
if obj.status.observedGeneration ~= nil and obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
if ready == nil then
  return health
end
health.message = ready.message
for _, condition in ipairs({ready, reconciling}) do
  -- Planned: status.plan waits for spec.approvedPlan. Paused: spec.paused.
  if condition.reason == "Planned" or condition.reason == "Paused" then
    return {status = "Suspended", message = condition.message}
  end
end
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.message}
end
if reconciling ~= nil and reconciling.status == "True" then
  health.message = reconciling.message
  return health
end
if ready.status == "True" then
  health.status = "Healthy"
end
return health

-- marker_restore: restores lost audit markers. Markers written since the loss are not replaced.
--
-- ARGV[3]  epoch
-- ARGV[4]  '1' in the last call: the markers are complete then
-- ARGV[5]  key, text; repeated
-- returns  {'OK', '1' if they were complete already} | STALE | EMPTIED | FOREIGN

local FIRST = 5
local why = refusal(ARGV[3])
if why then
  return why
end
if redis.call('EXISTS', WHOLE) == 1 then
  return {'OK', 1}
end
for i = FIRST, #ARGV, 2 do
  redis.call('HSETNX', NOTES, ARGV[i], ARGV[i + 1])
end
if ARGV[4] == '1' then
  redis.call('SET', WHOLE, '1')
end
return {'OK', 0}

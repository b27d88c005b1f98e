-- marker_drop: removes audit markers. The key 'report/ID' removes an audit report.
--
-- ARGV[3]  epoch of the leader
-- ARGV[4]  key; repeated
-- returns  {'OK'} | STALE | FOREIGN

local FIRST = 4
if state.epoch and is_old(ARGV[3]) then
  return {'STALE', state.epoch}
end
for i = FIRST, #ARGV do
  forget(ARGV[i])
end
return {'OK'}

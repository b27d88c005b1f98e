-- floor: the highest epoch that ever wrote, the audit chain included, and what has begun.
--
-- returns  {'OK', epoch, what has begun} | FOREIGN

local floor = state.epoch
if not floor or tonumber(floor) > MOST then
  floor = '0'
end
local sealed = audit_epoch()
if sealed and sealed > tonumber(floor) then
  floor = string.format('%d', sealed)
end
return {'OK', floor, begun()}

-- floor: the highest epoch that ever wrote, and what has begun.
--
-- returns  {'OK', epoch, what has begun} | FOREIGN

local floor = state.epoch
if not floor or tonumber(floor) > MOST then
  floor = '0'
end
return {'OK', floor, begun()}

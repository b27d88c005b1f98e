-- epoch_floor: returns the highest epoch that ever wrote, audit chain included, and begun().
--
-- ARGV[3]  the highest epoch known from other sources
-- returns  {'OK', epoch, begun()} | FOREIGN

local known = tonumber(ARGV[3])
local floor = 0
for _ = 1, 2 do  -- the one may be near enough to the other
  local next = math.max(known, floor) + 1
  floor = math.max(floor, believed(state.epoch, next) or 0, audit_epoch(next) or 0)
end
return {'OK', string.format('%d', floor), begun()}

-- report: keep reports of another process until the leader has told them; what is there stays.
--
-- ARGV[3]  most that are kept
-- ARGV[4]  id, text; and so on
-- returns  {'OK', how many were not kept} | FOREIGN

local FIRST = 4
local room = tonumber(ARGV[3]) - redis.call('HLEN', REPORTS)
local dropped = 0
for i = FIRST, #ARGV, 2 do
  if redis.call('HEXISTS', REPORTS, ARGV[i]) == 0 then
    if room > 0 then
      redis.call('HSET', REPORTS, ARGV[i], ARGV[i + 1])
      room = room - 1
    else
      dropped = dropped + 1
    end
  end
end
return {'OK', dropped}

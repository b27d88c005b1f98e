-- report_push: stores audit reports of another process for the leader. Existing reports stay.
--
-- ARGV[3]  maximum number of stored reports
-- ARGV[4]  id, text; repeated
-- returns  {'OK', number of dropped reports} | FOREIGN

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

-- report_drop: removes audit reports.
--
-- ARGV[3]  id; repeated
-- returns  {'OK'} | FOREIGN

local FIRST = 3
for i = FIRST, #ARGV do
  redis.call('HDEL', REPORTS, ARGV[i])
end
return {'OK'}

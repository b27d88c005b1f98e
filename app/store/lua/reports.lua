-- reports: some of the reports that wait.
--
-- ARGV[3]  how many at most
-- returns  {'OK', id, text, ...} | FOREIGN

local answer = {'OK'}
for _, id in ipairs(redis.call('HRANDFIELD', REPORTS, ARGV[3])) do
  table.insert(answer, id)
  table.insert(answer, redis.call('HGET', REPORTS, id))
end
return answer

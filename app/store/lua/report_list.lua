-- report_list: returns some of the stored audit reports.
--
-- ARGV[3]  maximum number of reports
-- returns  {'OK', id, text, ...} | FOREIGN

local answer = {'OK'}
for _, id in ipairs(redis.call('HRANDFIELD', REPORTS, ARGV[3])) do
  table.insert(answer, id)
  table.insert(answer, redis.call('HGET', REPORTS, id))
end
return answer

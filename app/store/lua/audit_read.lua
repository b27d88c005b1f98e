-- audit_read: reads entries of the audit stream, in order.
--
-- ARGV[3]  only entries above this number
-- ARGV[4]  maximum number of entries
-- returns  {'OK', number, text, ...} | FOREIGN

local found = redis.call('XRANGE', AUDIT, '(' .. ARGV[3] .. '-0', '+', 'COUNT', ARGV[4])
local flat = {'OK'}
for _, each in ipairs(found) do
  flat[#flat + 1] = each[1]
  flat[#flat + 1] = each[2][2]
end
return flat

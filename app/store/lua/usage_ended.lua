-- usage_ended: reads ended usage records, in order of their end.
--
-- ARGV[3]  only records that ended after this time
-- ARGV[4]  name of the last record that was read; '' to start
-- ARGV[5]  maximum number of records
-- returns  {'OK', name, record, ...} | FOREIGN

local limit = tonumber(ARGV[5])
local last = ARGV[4] ~= '' and redis.call('ZRANK', RUNS, ARGV[4])
local names
if last then
  names = redis.call('ZRANGE', RUNS, last + 1, last + limit)
else
  -- Start here also if the last record was removed meanwhile: some records are then read again.
  names = redis.call('ZRANGE', RUNS, '(' .. ARGV[3], '+inf', 'BYSCORE', 'LIMIT', 0, limit)
end
local flat = {'OK'}
for _, name in ipairs(names) do
  flat[#flat + 1] = name
  flat[#flat + 1] = redis.call('HGET', RUN, name) or ''
end
return flat

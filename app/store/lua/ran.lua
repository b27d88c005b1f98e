-- ran: some of the runs that have ended, by their end.
--
-- ARGV[3]  ended after this time
-- ARGV[4]  the last that was read; '': begin
-- ARGV[5]  how many at most
-- returns  {'OK', name, record, ...} | FOREIGN

local limit = tonumber(ARGV[5])
local last = ARGV[4] ~= '' and redis.call('ZRANK', RUNS, ARGV[4])
local names
if last then
  names = redis.call('ZRANGE', RUNS, last + 1, last + limit)
else
  -- Also if that one was removed meanwhile: what was read before comes once more.
  names = redis.call('ZRANGE', RUNS, '(' .. ARGV[3], '+inf', 'BYSCORE', 'LIMIT', 0, limit)
end
local flat = {'OK'}
for _, name in ipairs(names) do
  flat[#flat + 1] = name
  flat[#flat + 1] = redis.call('HGET', RUN, name) or ''
end
return flat

-- usage_trim: removes the oldest usage records, and stores the time from which they are complete.
--
-- ARGV[3]  epoch of the leader
-- ARGV[4]  now
-- ARGV[5]  records that ended before this time are removed
-- ARGV[6]  maximum number of records to retain
-- ARGV[7]  maximum number of records to remove in this call
-- returns  {'OK', number of removed records} | STALE | EMPTIED | FOREIGN

local why = refusal(ARGV[3])
if why then
  return why
end
local most = tonumber(ARGV[7])
local over = math.min(redis.call('ZCARD', RUNS) - tonumber(ARGV[6]), most)
local names = redis.call('ZRANGE', RUNS, '-inf', '(' .. ARGV[5], 'BYSCORE', 'LIMIT', 0, most)
if #names < over then
  names = redis.call('ZRANGE', RUNS, 0, over - 1)
end
local since = redis.call('GET', RUNS_SINCE) or ARGV[4]
for _, name in ipairs(names) do
  local last = string.match(redis.call('HGET', RUN, name) or '', ',(%d+),[01]%]$')
  if last and tonumber(last) > (tonumber(since) or 0) then
    since = last
  end
end
for _, name in ipairs(names) do
  redis.call('HDEL', RUN, name)
  redis.call('ZREM', RUNS, name)
end
redis.call('SET', RUNS_SINCE, since)
return {'OK', #names}

-- queue_page: returns the records of the first pods of one queue, in order.
--
-- ARGV[3]  TENANT:USER
-- ARGV[4]  maximum number of pods
-- returns  {'OK', record, ...} | EMPTIED | FOREIGN

if not state.generation then
  return EMPTY
end
local limit = tonumber(ARGV[4])
if limit < 1 then
  return {'OK'}
end
local held = key(state.generation, 'held')
local queue = key(state.generation, 'queue:' .. ARGV[3])
local answer = {'OK'}
for _, member in ipairs(redis.call('ZRANGE', queue, 0, limit - 1)) do
  table.insert(answer, redis.call('HGET', held, string.match(member, '%z(.*)$')))
end
return answer

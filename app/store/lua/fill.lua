-- fill: pods that wait, into a generation that is being built and knows none of them; once, however
-- often it is sent. A command a queue, where `apply` takes five a pod.
--
-- ARGV[3]  epoch
-- ARGV[4]  generation
-- ARGV[5]  number of this batch: one more than the last
-- ARGV[6]  queue, how many pods, and for each of them uid, record, member; and so on
-- returns  {'OK'} | STALE | EMPTIED | FOREIGN

local FIRST = 6
local generation = ARGV[4]
local answer = refusal(ARGV[3]) or verdict(generation, 'building', ARGV[5])
if answer then
  return answer
end

local fields = {}
local at = FIRST
while at <= #ARGV do
  local queue, count = ARGV[at], tonumber(ARGV[at + 1])
  local members, last = {}, at + 1 + 3 * count
  for i = at + 2, last, 3 do
    fields[#fields + 1], fields[#fields + 2] = ARGV[i], ARGV[i + 1]
    members[#members + 1], members[#members + 2] = 0, ARGV[i + 2]
  end
  redis.call('ZADD', key(generation, 'queue:' .. queue), unpack(members))
  redis.call('HINCRBY', key(generation, 'waiting'), queue, count)
  at = last + 1
end
redis.call('HSET', key(generation, 'held'), unpack(fields))
redis.call('SET', key(generation, 'sequence'), ARGV[5])
return {'OK'}

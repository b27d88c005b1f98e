-- fill_queues: adds waiting pods to a generation that is being built and does not contain them yet.
-- Repeated calls add them once. It needs one command per queue; `apply_writes` needs five per pod.
--
-- ARGV[3]  epoch
-- ARGV[4]  generation
-- ARGV[5]  number of this batch: one more than the last
-- ARGV[6]  queue, number of pods, then uid, record, order, member of each pod; repeated
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
  local members, last = {}, at + 1 + 4 * count
  for i = at + 2, last, 4 do
    fields[#fields + 1], fields[#fields + 2] = ARGV[i], ARGV[i + 1]
    members[#members + 1], members[#members + 2] = ARGV[i + 2], ARGV[i + 3]
  end
  redis.call('ZADD', key(generation, 'queue:' .. queue), unpack(members))
  redis.call('HINCRBY', key(generation, 'waiting'), queue, count)
  at = last + 1
end
redis.call('HSET', key(generation, 'held'), unpack(fields))
redis.call('SET', key(generation, 'sequence'), ARGV[5])
return {'OK'}

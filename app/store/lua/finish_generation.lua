-- finish_generation: makes the built generation the valid one, if it is complete. Deletes the old one.
--
-- ARGV[3]  epoch
-- ARGV[4]  generation
-- ARGV[5]  number of its last write
-- returns  {'OK'} | STALE | EMPTIED | FOREIGN

local epoch, generation = ARGV[3], ARGV[4]
local why = refusal(epoch)
if why then
  return why
end
if generation == state.generation then
  return {'OK'}
end
-- A failover to a lagging replica may have lost the last writes.
local last = redis.call('GET', key(generation, 'sequence')) or '0'
if generation ~= state.building or last ~= ARGV[5] then
  return {'EMPTIED', 'a rebuild was cut short'}
end

redis.call('HSET', KEYS[2], 'generation', generation)
redis.call('HDEL', KEYS[2], 'building')
if state.generation then
  drop(state.generation)
end
return {'OK'}

-- begin_generation: raises the epoch floor and starts an empty generation. The valid generation stays
-- readable, but accepts no more writes. An unfinished earlier rebuild is deleted.
--
-- ARGV[3]  epoch
-- ARGV[4]  name of the new generation
-- ARGV[5]  begun() as returned by `epoch_floor`. If it differs now, this call is late, and a newer
--          rebuild must not be undone.
-- returns  {'OK'} | STALE | EMPTIED | FOREIGN

local epoch, generation = ARGV[3], ARGV[4]
if state.epoch and is_old(epoch) then
  return {'STALE', state.epoch}
end
if generation == state.building or generation == state.generation then
  return {'OK'}
end
if begun() ~= ARGV[5] then
  return {'EMPTIED', 'another rebuild came in between'}
end

if state.building then
  drop(state.building)
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], 'epoch', epoch, 'building', generation)
return {'OK'}

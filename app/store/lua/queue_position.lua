-- queue_position: returns the queue position of one pod.
--
-- ARGV[3]  uid
-- returns  {'OK', record, number of pods before it, length of the queue}
--          {'OK'} if it does not wait | EMPTIED | FOREIGN

if not state.generation then
  return EMPTY
end
local text = redis.call('HGET', key(state.generation, 'held'), ARGV[3])
if not text then
  return {'OK'}
end
local record = cjson.decode(text)
local queue = key(state.generation, 'queue:' .. record.queue)
return {'OK', text, redis.call('ZRANK', queue, record.member), redis.call('ZCARD', queue)}

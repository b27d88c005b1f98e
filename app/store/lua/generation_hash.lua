-- generation_hash: returns one complete hash of the valid generation.
--
-- ARGV[3]  its name: waiting, used or intents
-- returns  {'OK', {field, value, ...}} | EMPTIED | FOREIGN

if not state.generation then
  return EMPTY
end
return {'OK', redis.call('HGETALL', key(state.generation, ARGV[3]))}

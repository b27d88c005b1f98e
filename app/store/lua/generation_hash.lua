-- generation_hash: returns one hash of the valid generation.
--
-- ARGV[3]  its name: waiting, used or intents
-- ARGV[4]  only fields that begin with this, percent-encoded; empty: all fields
-- returns  {'OK', {field, value, ...}} | EMPTIED | FOREIGN

if not state.generation then
  return EMPTY
end
local hash = key(state.generation, ARGV[3])
if ARGV[4] == '' then
  return {'OK', redis.call('HGETALL', hash)}
end
local found, cursor = {}, '0'
repeat
  local part = redis.call('HSCAN', hash, cursor, 'MATCH', ARGV[4] .. '*', 'COUNT', 1000)
  cursor = part[1]
  for _, text in ipairs(part[2]) do
    found[#found + 1] = text
  end
until cursor == '0'
return {'OK', found}

-- take: raise the floor, so that nobody of an older epoch writes or records any more; return what
-- was noted with the audit chain.
--
-- ARGV[3]  epoch
-- returns  {'OK', '1' if nothing of it was lost, {key, text, ...}} | STALE | FOREIGN

local epoch = ARGV[3]
if state.epoch and is_old(epoch) then
  return {'STALE', state.epoch}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], 'epoch', epoch)
local notes = redis.call('HGETALL', NOTES)
return {'OK', redis.call('EXISTS', WHOLE), notes}

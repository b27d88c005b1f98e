-- post: tell the other replicas what only the leader knows, in place of what was told before.
--
-- ARGV[3]  epoch of the leader
-- ARGV[4]  what is told
-- returns  {'OK'} | STALE | FOREIGN

if state.epoch and is_old(ARGV[3]) then
  return {'STALE', state.epoch}
end
redis.call('SET', ARGV[2] .. 'bulletin', ARGV[4])
return {'OK'}

-- leader_state_put: publishes the leader state for the other replicas. It replaces the last message.
--
-- ARGV[3]  epoch of the leader
-- ARGV[4]  the message
-- returns  {'OK'} | STALE | FOREIGN

if state.epoch and is_old(ARGV[3]) then
  return {'STALE', state.epoch}
end
redis.call('SET', ARGV[2] .. 'bulletin', ARGV[4])
return {'OK'}

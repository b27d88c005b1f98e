-- audit_append: appends entries to the audit stream and stores the new head, all or none. Repeated calls
-- append once. It needs no generation: the chain survives the loss of the copied state.
--
-- ARGV[3]  epoch of the leader
-- ARGV[4]  number, ARGV[5] hash of the last entry that the stream must have
-- ARGV[6]  the new head: number, ARGV[7] hash, ARGV[8] signed head as JSON
-- ARGV[9]  entries below this number are removed; '0' removes no entry
-- ARGV[10] '1': the stored stream cannot be continued and is renamed
-- ARGV[11] number of audit markers to store in the same step
-- ARGV[12] key, text ('' removes the marker, or the report that is recorded now); repeated
-- then     number, text of every entry
-- returns  {'OK', '1'} | {'OK', '0', number, hash: the actual last entry}
--          | STALE | FOREIGN

local NOTED = 12
local FIRST = NOTED + 2 * tonumber(ARGV[11])
local epoch = ARGV[3]
if state.epoch and is_old(epoch) then
  return {'STALE', state.epoch}
end
local sealed = audit_epoch(epoch)
if sealed and sealed > tonumber(epoch) then
  return {'STALE', string.format('%d', sealed)}
end

local number, hash, top = audit_tail()
if number == ARGV[6] and hash == ARGV[7] then
  -- A repeated call. Or only the head was lost and there is no entry to append.
  redis.call('HSET', AUDIT_HEAD, 'epoch', epoch, 'signed', ARGV[8])
  return {'OK', '1'}
end
if number ~= ARGV[4] or hash ~= ARGV[5] then
  return {'OK', '0', number, hash}
end
if ARGV[10] ~= '1' and ARGV[FIRST] and tonumber(ARGV[FIRST]) <= top then
  return {'OK', '0', number, hash}
end

if ARGV[10] == '1' and redis.call('EXISTS', AUDIT) == 1 then
  redis.call('RENAME', AUDIT, AUDIT .. '-aside')
  redis.call('DEL', AUDIT_HEAD)
end
if ARGV[9] ~= '0' then
  -- Trim first: without memory Redis refuses a first write that needs more, but no later write.
  redis.call('XTRIM', AUDIT, 'MINID', ARGV[9] .. '-0')
end
for i = FIRST, #ARGV, 2 do
  redis.call('XADD', AUDIT, ARGV[i] .. '-0', 'entry', ARGV[i + 1])
end
for i = NOTED, FIRST - 1, 2 do
  local name, text = ARGV[i], ARGV[i + 1]
  if text == '' then
    forget(name)
  else
    redis.call('HSET', NOTES, name, text)
  end
end
redis.call('HSET', AUDIT_HEAD, 'epoch', epoch, 'signed', ARGV[8])
return {'OK', '1'}

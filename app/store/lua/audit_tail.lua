-- audit_tail: returns the end of the audit stream.
--
-- returns  {'OK', number, hash of the last entry, the highest number ever, signed head as JSON,
--          bytes of memory; 0 if unknown} | FOREIGN

local number, hash, top = audit_tail()
local signed = redis.call('HGET', AUDIT_HEAD, 'signed') or ''
local size = redis.pcall('MEMORY', 'USAGE', AUDIT)
if type(size) ~= 'number' then
  size = 0
end
return {'OK', number, hash, string.format('%.0f', top), signed, size}

-- trail: how the audit stream ends.
--
-- returns  {'OK', number, hash of the last entry, the highest number it ever had, signed head as
--          JSON, bytes} | FOREIGN

local number, hash, top = audit_tail()
local head = redis.call('HMGET', AUDIT_HEAD, 'signed', 'bytes')
return {'OK', number, hash, string.format('%.0f', top), head[1] or '', head[2] or '0'}

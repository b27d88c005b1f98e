-- noted: what the audit chain last told of what is there.
--
-- returns  {'OK', 1 if none of it was lost, {key, text, ...}} | FOREIGN

return {'OK', redis.call('EXISTS', WHOLE), redis.call('HGETALL', NOTES)}

-- usage_open: returns the open usage records.
--
-- returns  {'OK', {uid, record, ...}} | FOREIGN

return {'OK', redis.call('HGETALL', RUNNING)}

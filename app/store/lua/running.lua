-- running: the runs that go on.
--
-- returns  {'OK', {uid, record, ...}} | FOREIGN

return {'OK', redis.call('HGETALL', RUNNING)}

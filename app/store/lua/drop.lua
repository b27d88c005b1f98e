-- drop: remove a report that was told.
--
-- ARGV[3]  id
-- returns  {'OK'} | FOREIGN

redis.call('HDEL', REPORTS, ARGV[3])
return {'OK'}

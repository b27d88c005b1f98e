-- noted: some of what the audit chain last told of what is there. While no leader writes, all that is
-- there is told by going on until the cursor is 0 again; some may come twice.
--
-- ARGV[3]  cursor: 0, then what the last call answered
-- ARGV[4]  about how many at once
-- returns  {'OK', 1 if none of it was lost, cursor, {key, text, ...}} | FOREIGN

local found = redis.call('HSCAN', NOTES, ARGV[3], 'COUNT', ARGV[4])
return {'OK', redis.call('EXISTS', WHOLE), found[1], found[2]}

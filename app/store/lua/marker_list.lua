-- marker_list: lists audit markers, page by page. If no leader writes meanwhile, calls until the cursor
-- is 0 again return all markers. Some may be returned twice.
--
-- ARGV[3]  cursor: 0, then the cursor of the last result
-- ARGV[4]  approximate page size
-- returns  {'OK', 1 if no marker was lost, cursor, {key, text, ...}} | FOREIGN

local found = redis.call('HSCAN', NOTES, ARGV[3], 'COUNT', ARGV[4])
return {'OK', redis.call('EXISTS', WHOLE), found[1], found[2]}

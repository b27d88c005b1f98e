-- usage_complete_since: returns the time from which usage records are complete.
--
-- returns  {'OK', time; empty string if unknown} | FOREIGN

return {'OK', redis.call('GET', RUNS_SINCE) or ''}

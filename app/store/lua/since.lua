-- since: from when on no run is missing.
--
-- returns  {'OK', time; '' if nobody can tell} | FOREIGN

return {'OK', redis.call('GET', RUNS_SINCE) or ''}

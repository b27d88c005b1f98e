-- floor: the highest epoch that ever wrote, and what has begun.
--
-- returns  {'OK', epoch, what has begun} | FOREIGN

return {'OK', state.epoch or '0', begun()}

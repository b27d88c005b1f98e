-- floor: the highest epoch that ever wrote.
--
-- returns  {'OK', epoch} | FOREIGN

return {'OK', state.epoch or '0'}

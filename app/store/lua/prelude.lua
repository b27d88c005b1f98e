-- What every script begins with. Reads only; what may write are the functions it offers.
--
-- KEYS[1]  layout version
-- KEYS[2]  state: hash of epoch, generation, building
-- ARGV[1]  the layout version that the caller knows
-- ARGV[2]  what all our keys begin with. The keys of a generation follow from it and KEYS[2], so
--          they cannot be declared in KEYS; their hash tag puts them in the same slot.
-- returns  {'OK', ...} | {'STALE', epoch} | {'EMPTIED', what} | {'FOREIGN', version}

local layout = redis.call('GET', KEYS[1])
if layout and layout ~= ARGV[1] then
  return {'FOREIGN', layout}
end

local state = {
  epoch = redis.call('HGET', KEYS[2], 'epoch'),
  generation = redis.call('HGET', KEYS[2], 'generation'),
  building = redis.call('HGET', KEYS[2], 'building'),
}

-- What no leader can have written counts as not written: a term takes seconds, so none gets so far
-- beyond another. Nobody can raise epochs by more through Redis alone, and what it raised them to is
-- kept outside of it, where numbers a hundred times as high are read (MOST in core/fair/order.py).
local FAR = 1000000000

-- Return an epoch that is written here, if whoever would lead under `epoch` may believe it.
local function believed(written, epoch)
  if written and #written <= 12 and string.find(written, '^%d+$') then
    local number = tonumber(written)
    return number <= tonumber(epoch) + FAR and number or nil
  end
end
if not believed(state.epoch, 1e12) then
  state.epoch = nil
end

-- What the audit chain last told of what is there; a key of its own says that none of it is lost.
local NOTES, WHOLE = ARGV[2] .. 'notes', ARGV[2] .. 'notes-whole'

-- What other processes reported, and is not in the chain yet.
local REPORTS = ARGV[2] .. 'reports'

-- Drop a note; or, under 'report/ID', a report that was told.
local function forget(name)
  if string.sub(name, 1, 7) == 'report/' then
    redis.call('HDEL', REPORTS, string.sub(name, 8))
  else
    redis.call('HDEL', NOTES, name)
  end
end

-- What pods use now, and used: the only record of it, so it stands next to the generations.
local RUNNING, RUN = ARGV[2] .. 'running', ARGV[2] .. 'run'
local RUNS, RUNS_SINCE = ARGV[2] .. 'runs', ARGV[2] .. 'runs-since'

local EMPTY = {'EMPTIED', 'no complete state'}

-- Return a text that every begin and every finish changes.
local function begun()
  return (state.generation or '') .. '/' .. (state.building or '')
end

local function key(generation, name)
  return ARGV[2] .. generation .. ':' .. name
end

-- Tell whether a leader of a later epoch has written.
local function is_old(epoch)
  local written = believed(state.epoch, epoch)
  return written ~= nil and written > tonumber(epoch)
end

-- Return nil if a leader of this epoch may write, or why not.
local function refusal(epoch)
  if not state.epoch then
    return {'EMPTIED', 'no epoch'}
  elseif is_old(epoch) then
    return {'STALE', state.epoch}
  elseif state.epoch ~= epoch then
    return {'EMPTIED', 'the state is of epoch ' .. state.epoch}
  end
end

-- Return nil if this is the next batch for a generation that is still in its place ('generation' or
-- 'building'); or what to answer instead.
local function verdict(generation, slot, number)
  if generation ~= state[slot] then
    return {'EMPTIED', 'another state'}
  end
  local last = redis.call('GET', key(generation, 'sequence')) or '0'
  local ahead = tonumber(number) - tonumber(last)
  if ahead <= 0 then
    return {'OK'}
  elseif ahead > 1 then
    redis.call('DEL', RUNS_SINCE)  -- what else was lost with it, nobody can tell
    return {'EMPTIED', 'an earlier write is missing'}
  end
end

-- Delete a generation. Its memory is given back in the background.
local function drop(generation)
  for _, queue in ipairs(redis.call('HKEYS', key(generation, 'waiting'))) do
    redis.call('UNLINK', key(generation, 'queue:' .. queue))
  end
  for _, name in ipairs({'sequence', 'waiting', 'held', 'intents', 'charges', 'used'}) do
    redis.call('UNLINK', key(generation, name))
  end
end


-- The audit chain stands next to the generations: an emptied copy does not touch it.
local AUDIT, AUDIT_HEAD = ARGV[2] .. 'audit', ARGV[2] .. 'audit-head'

-- Return the epoch of whoever sealed last; nil if nobody did whom `epoch` may believe.
local function audit_epoch(epoch)
  return believed(redis.call('HGET', AUDIT_HEAD, 'epoch') or nil, epoch)
end

-- Return number and hash of the last entry, as text, and the highest number the stream ever had.
local function audit_tail()
  local top = 0
  local info = redis.call('EXISTS', AUDIT) == 1 and redis.call('XINFO', 'STREAM', AUDIT) or {}
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      top = tonumber(string.match(info[i + 1], '^%d+'))
    end
  end
  local last = redis.call('XREVRANGE', AUDIT, '+', '-', 'COUNT', 1)[1]
  if not last then
    return '0', string.rep('0', 64), top
  end
  local hash = string.match(last[2][2] or '', '"hash":"(%x+)"}$')
  return string.match(last[1], '^%d+'), hash or '', top
end

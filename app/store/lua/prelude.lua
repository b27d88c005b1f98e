-- First part of every script. It only reads. The functions that it defines may write.
--
-- KEYS[1]  layout version
-- KEYS[2]  state: hash of epoch, generation, building
-- ARGV[1]  the layout version of the caller
-- ARGV[2]  prefix of all keys. The keys of a generation depend on it and on KEYS[2], so they
--          cannot be declared in KEYS. Their hash tag puts them in the same slot.
-- returns  {'OK', ...} | {'STALE', epoch} | {'EMPTIED', reason} | {'FOREIGN', version}

local layout = redis.call('GET', KEYS[1])
if layout and layout ~= ARGV[1] then
  return {'FOREIGN', layout}
end

local state = {
  epoch = redis.call('HGET', KEYS[2], 'epoch'),
  generation = redis.call('HGET', KEYS[2], 'generation'),
  building = redis.call('HGET', KEYS[2], 'building'),
}

-- Treat an implausible epoch as missing. A term lasts seconds, so a real epoch cannot be this far
-- ahead. A client of Redis alone cannot raise epochs by more than this. The raised epochs are also
-- stored outside Redis, where numbers up to a hundred times higher are valid (MAX_EPOCH
-- in core/epochs.py).
local FAR = 1000000000

-- Return `written` as a number if it is a plausible epoch for a leader of `epoch`, else nil.
local function believed(written, epoch)
  if written and #written <= 12 and string.find(written, '^%d+$') then
    local number = tonumber(written)
    return number <= tonumber(epoch) + FAR and number or nil
  end
end
if not believed(state.epoch, 1e12) then
  state.epoch = nil
end

-- Audit markers: the last recorded state of each object. WHOLE exists while no marker is lost.
local NOTES, WHOLE = ARGV[2] .. 'notes', ARGV[2] .. 'notes-whole'

-- Audit reports of other processes that are not in the chain yet.
local REPORTS = ARGV[2] .. 'reports'

-- Remove an audit marker. The name 'report/ID' removes an audit report instead.
local function forget(name)
  if string.sub(name, 1, 7) == 'report/' then
    redis.call('HDEL', REPORTS, string.sub(name, 8))
  else
    redis.call('HDEL', NOTES, name)
  end
end

-- Usage records. They have no other copy, so they do not belong to a generation.
local RUNNING, RUN = ARGV[2] .. 'running', ARGV[2] .. 'run'
local RUNS, RUNS_SINCE = ARGV[2] .. 'runs', ARGV[2] .. 'runs-since'

local EMPTY = {'EMPTIED', 'no complete state'}

-- Return a text that changes with every `begin_generation` and every `finish_generation`.
local function begun()
  return (state.generation or '') .. '/' .. (state.building or '')
end

local function key(generation, name)
  return ARGV[2] .. generation .. ':' .. name
end

-- Return whether a leader of a later epoch has written.
local function is_old(epoch)
  local written = believed(state.epoch, epoch)
  return written ~= nil and written > tonumber(epoch)
end

-- Return nil if a leader of this epoch may write, otherwise the error to return.
local function refusal(epoch)
  if not state.epoch then
    return {'EMPTIED', 'no epoch'}
  elseif is_old(epoch) then
    return {'STALE', state.epoch}
  elseif state.epoch ~= epoch then
    return {'EMPTIED', 'the state is of epoch ' .. state.epoch}
  end
end

-- Return nil if this is the next batch of the current generation in `slot` ('generation' or
-- 'building'), otherwise the result to return.
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

-- Delete a generation. Redis frees its memory in the background.
local function drop(generation)
  for _, queue in ipairs(redis.call('HKEYS', key(generation, 'waiting'))) do
    redis.call('UNLINK', key(generation, 'queue:' .. queue))
  end
  for _, name in ipairs({'sequence', 'waiting', 'held', 'intents', 'charges', 'used'}) do
    redis.call('UNLINK', key(generation, name))
  end
end


-- The audit chain does not belong to a generation: it survives the loss of the copied state.
local AUDIT, AUDIT_HEAD = ARGV[2] .. 'audit', ARGV[2] .. 'audit-head'

-- Return the epoch of the last append, or nil if it is missing or implausible for `epoch`.
local function audit_epoch(epoch)
  return believed(redis.call('HGET', AUDIT_HEAD, 'epoch') or nil, epoch)
end

-- Return number and hash of the last entry as text, and the highest number ever in the stream.
-- An entry that no leader appended has an empty hash.
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
  local number, sequence = string.match(last[1], '^(%d+)-(%d+)$')
  -- A leader appends with sequence 0 only. A copy of its entry may have another one.
  local hash = sequence == '0' and string.match(last[2][2] or '', '"hash":"(%x+)"}$')
  return number, hash or '', top
end

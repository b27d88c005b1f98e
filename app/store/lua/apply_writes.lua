-- apply_writes: applies a batch of writes to one generation, all or none. Repeated calls apply it once.
--
-- ARGV[3]  epoch
-- ARGV[4]  generation
-- ARGV[5]  number of this batch: one more than the last
-- ARGV[6]  required state of the generation: 'generation' (valid) or 'building'
-- ARGV[7]  operation, uid, record; repeated
-- returns  {'OK'} | STALE | EMPTIED | FOREIGN

local FIRST = 7
local epoch, generation, slot = ARGV[3], ARGV[4], ARGV[6]
local answer = refusal(epoch) or verdict(generation, slot, ARGV[5])
if answer then
  return answer
end
local SEQUENCE = key(generation, 'sequence')

local HELD, WAITING = key(generation, 'held'), key(generation, 'waiting')
local INTENTS, CHARGES = key(generation, 'intents'), key(generation, 'charges')
local USED, QUEUE = key(generation, 'used'), key(generation, 'queue:')

local function leave(uid)
  local text = redis.call('HGET', HELD, uid)
  if text then
    local record = cjson.decode(text)
    redis.call('ZREM', QUEUE .. record.queue, record.member)
    redis.call('HDEL', HELD, uid)
    if redis.call('HINCRBY', WAITING, record.queue, -1) == 0 then
      redis.call('HDEL', WAITING, record.queue)
    end
  end
end

local function enter(uid, text, record)
  leave(uid)
  redis.call('ZADD', QUEUE .. record.queue, record.order or 0, record.member)
  redis.call('HSET', HELD, uid, text)
  redis.call('HINCRBY', WAITING, record.queue, 1)
end

-- Amounts are text. The pods of one user can exceed the 64 bits of HINCRBY, and numbers in Lua are
-- doubles, exact up to 2^53. So a sum has two parts here, and the lower part has 15 digits.
local LOW = 1e15
local function split(amount)
  return tonumber(string.sub(amount, 1, -16)) or 0, tonumber(string.sub(amount, -15))
end

local function plus(sum, sign, amount)
  local high, low = split(sum)
  local more_high, more_low = split(amount)
  high, low = high + sign * more_high, low + sign * more_low
  local carry = math.floor(low / LOW)
  high, low = high + carry, low - carry * LOW
  if high == 0 then
    return string.format('%.0f', low)
  end
  return string.format('%.0f%015.0f', high, low)
end

local function count(sign, record)
  for resource, amount in pairs(record.amounts) do
    local cell = record.at .. ':' .. resource
    local sum = plus(redis.call('HGET', USED, cell) or '0', sign, amount)
    redis.call('HSET', USED, cell, sum)
    if sum == '0' then
      redis.call('HDEL', USED, cell)
    end
  end
end

local function refund(uid)
  for _, records in ipairs({INTENTS, CHARGES}) do
    local text = redis.call('HGET', records, uid)
    if text then
      count(-1, cjson.decode(text))
      redis.call('HDEL', records, uid)
    end
  end
end

local function take(records, uid, text, record)
  if redis.call('HGET', records, uid) == text then
    return
  end
  refund(uid)
  redis.call('HSET', records, uid, text)
  count(1, record)
end

-- Return the open usage record of a pod and its text; no values if it is missing or invalid.
local function going(uid)
  local text = redis.call('HGET', RUNNING, uid)
  local legible, record = pcall(cjson.decode, text or '')
  if legible and type(record) == 'table' and type(record[1]) == 'number' then
    return record, text
  end
end

local function keep(uid, begin, text, at)
  local name = uid .. '/' .. string.format('%.0f', begin)
  if redis.call('HSETNX', RUN, name, text) == 1 then
    redis.call('ZADD', RUNS, string.format('%.0f', at), name)
  end
end

-- A pod has one open usage record: the previous one ends where the next begins.
local function succeed(uid, begin)
  local before, text = going(uid)
  if before and before[1] < begin then
    local ending = string.format(',%.0f,0]', begin)
    keep(uid, before[1], string.sub(text, 1, -2) .. ending, begin)
    redis.call('HDEL', RUNNING, uid)
  end
end

-- begun and ran may repeat and be out of order: a record with less information is ignored.
local function begun(uid, text, record)
  succeed(uid, record[1])
  local known = going(uid)
  local older = known and (known[1] > record[1] or known[2] ~= 0 and record[2] == 0)
  local name = uid .. '/' .. string.format('%.0f', record[1])
  if not older and redis.call('HEXISTS', RUN, name) == 0 then
    redis.call('HSET', RUNNING, uid, text)
  end
end

local function ran(uid, text, record)
  succeed(uid, record[1])
  local known = going(uid)
  if known and known[1] == record[1] then
    redis.call('HDEL', RUNNING, uid)
  end
  keep(uid, record[1], text, record[5])
end

local operations = {
  begun = begun,
  ran = ran,
  enqueue = enter,
  dequeue = leave,
  intend = function(...) take(INTENTS, ...) end,
  charge = function(...) take(CHARGES, ...) end,
  refund = refund,
}

-- A script that fails keeps its earlier writes. So parse the whole batch before the first write.
local records = {}
for i = FIRST, #ARGV, 3 do
  if not operations[ARGV[i]] then
    return redis.error_reply('unknown operation ' .. ARGV[i])
  end
  if ARGV[i + 2] ~= '' then
    records[i] = cjson.decode(ARGV[i + 2])
  end
end

-- If Redis is out of memory, it refuses the first write of a script, or no write at all.
for i = FIRST, #ARGV, 3 do
  operations[ARGV[i]](ARGV[i + 1], ARGV[i + 2], records[i])
end
redis.call('SET', SEQUENCE, ARGV[5])
return {'OK'}

-- queue_page: returns the first workloads of some queues, one queue after the other.
--
-- A queue lists its queued workloads first (score 0), then the unqueued ones (1), then the other
-- pods of gangs (2), which are not returned.
--
-- ARGV[3]  maximum number of workloads
-- ARGV[4]  score of the last workload returned before, of the first queue; empty: none
-- ARGV[5]  its member, which may have left the queue
-- ARGV[6]  TENANT:USER; repeated
-- returns  {'OK', {number of the queue from 0, its queued workloads, workloads before the first,
--          records as lines of text}, ...} | EMPTIED | FOREIGN. One text is parsed faster than many.

if not state.generation then
  return EMPTY
end
local limit, held = tonumber(ARGV[3]), key(state.generation, 'held')

-- Compare bytes: the operator < of Lua depends on the locale of the server.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- Return how many entries of a queue come before the first one for which `is_behind` is true.
local function count_until(queue, is_behind)
  local low, high = 0, redis.call('ZCARD', queue)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('ZRANGE', queue, middle, middle, 'WITHSCORES')
    if is_behind(tonumber(entry[2]), entry[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Return how many entries have at most this score. Most queues have a single score.
local function count_scores(queue, most)
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  if last[2] and tonumber(last[2]) <= most then
    return redis.call('ZCARD', queue)
  end
  return count_until(queue, function(score) return score > most end)
end

local answer = {'OK'}
for i = 6, #ARGV do
  local queue = key(state.generation, 'queue:' .. ARGV[i])
  local start = 0
  if i == 6 and ARGV[4] ~= '' then
    local mark = tonumber(ARGV[4])
    start = count_until(queue, function(score, member)
      return score > mark or score == mark and precedes(ARGV[5], member)
    end)
  end
  local stop = math.min(count_scores(queue, 1), start + limit)
  if start < stop then
    local records = {}
    for n, member in ipairs(redis.call('ZRANGE', queue, start, stop - 1)) do
      records[n] = redis.call('HGET', held, string.match(member, '%z(.*)$')) or ''
    end
    answer[#answer + 1] = {i - 6, count_scores(queue, 0), start, table.concat(records, '\n')}
    limit = limit - #records
  end
  if limit < 1 then
    break
  end
end
return answer

-- ARGV: worker, stream's length, head of the stream entry, (generation, epoch, kind, seq, publication) ...
-- kind: progress (streamed only), delta, end. Returns the refused generations, and the cancels that wait for the worker.
local worker, maxlen, head = ARGV[1], ARGV[2], ARGV[3]
local now = now_ms()

-- Appends to the log: 'new', 'known' for a repeated one (its first answer was lost), 'refused'.
local function append(generation, kind, seq, entry)
  local log = log_key(generation)
  local length = redis.call('LLEN', log)
  if seq <= length then
    return redis.call('LINDEX', log, seq - 1) == entry and 'known' or 'refused'
  end
  if seq > length + 1 or redis.call('HEXISTS', generation_key(generation), 'closed') == 1 then
    return 'refused'
  end
  redis.call('RPUSH', log, entry)
  if kind == 'end' then
    redis.call('HSET', generation_key(generation), 'closed', 1)
  else
    redis.call('HSET', generation_key(generation), 'said', now)
  end
  return 'new'
end

local refused, accepted = {}, {}
for i = 4, #ARGV, 5 do
  local generation, epoch, kind, seq, publication = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local fate = 'refused'
  if holds(generation, epoch, worker) then
    fate = kind == 'progress' and 'new' or append(generation, kind, tonumber(seq), publication)
  end
  if fate == 'refused' then
    refused[#refused + 1] = generation
  elseif fate == 'new' then
    accepted[#accepted + 1] = pair(generation, publication)
  end
end
if #accepted > 0 then
  stream(head, #accepted, accepted, maxlen)
end
return {refused, redis.call('HGETALL', cancels_key(worker))}

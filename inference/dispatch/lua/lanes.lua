-- ARGV: model. For each lane that was ever used: its rank, how many wait, how often it was passed over, and which
-- generation arrived first; false if none waits.
local model = ARGV[1]

local lanes = {}
for _, rank in ipairs(redis.call('SMEMBERS', ranks_key(model))) do
  local first = redis.call('ZRANGE', queue_key(model, rank), 0, 0)[1] or false
  local skips = redis.call('HGET', skips_key(model), rank) or '0'
  lanes[#lanes + 1] = {rank, redis.call('ZCARD', queue_key(model, rank)), skips, first}
end
return lanes

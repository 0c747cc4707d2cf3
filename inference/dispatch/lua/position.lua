-- ARGV: generation. Its position in the queue, 1 for the first; false if it is not queued.
local generation = ARGV[1]
local of = redis.call('HMGET', generation_key(generation), 'state', 'model', 'rank')
local state, model, rank = of[1], of[2], of[3]

if state ~= 'queued' then
  return false
end
local position = redis.call('ZRANK', queue_key(model, rank), generation) + 1
for _, other in ipairs(redis.call('SMEMBERS', ranks_key(model))) do
  if tonumber(other) < tonumber(rank) then
    position = position + redis.call('ZCARD', queue_key(model, other))
  end
end
return position

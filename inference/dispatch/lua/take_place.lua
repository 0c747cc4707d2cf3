-- ARGV: model, generation, limit, milliseconds to live. 1: it has a place; 0: the queue is full.
local model, generation, limit, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local places, now = places_key(model), now_ms()

redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
if redis.call('ZSCORE', places, generation) or redis.call('EXISTS', generation_key(generation)) == 1 then
  return 1
end
local taken = redis.call('ZCARD', places)
for _, rank in ipairs(redis.call('SMEMBERS', ranks_key(model))) do
  taken = taken + redis.call('ZCARD', queue_key(model, rank))
end
if taken >= limit then
  return 0
end
redis.call('ZADD', places, now + ttl, generation)
return 1

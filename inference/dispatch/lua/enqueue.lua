-- ARGV: generation, task, model, rank, tenant, cost, weight, epoch floor. 1: enqueued; 0: it was here before.
local generation, task, model, rank, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local cost, weight, epoch_floor = ARGV[6], ARGV[7], ARGV[8]
local key = generation_key(generation)

redis.call('ZREM', places_key(model), generation)
if redis.call('EXISTS', key) == 1 then
  return 0
end
local arrival = redis.call('HINCRBY', ledger_key(model), 'arrivals', 1)
local log_lost = 0
if epoch_floor ~= '0' and redis.call('EXISTS', log_key(generation)) == 0 then
  log_lost = 1
end
redis.call('HSET', key, 'task', task, 'model', model, 'rank', rank, 'tenant', tenant, 'cost', cost, 'due', cost,
  'weight', weight, 'epoch', epoch_floor, 'arrival', arrival, 'log_lost', log_lost)
redis.call('PERSIST', log_key(generation))
join_queue(generation)
return 1

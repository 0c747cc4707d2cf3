-- ARGV: model, version, claim's id, worker, lease in milliseconds, rank, tenant, generation, virtual time,
-- number of finish tags, (tenant, finish tag) ..., (rank, skips) ...
-- Applies a choice if what it was made from still holds, else returns false. Repeating a claim by its id changes nothing.
local model, version, claim, worker, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local rank, tenant, generation, virtual_time = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local key = generation_key(generation)

local function granted()
  local of = redis.call('HMGET', key, 'epoch', 'task', 'cancel', 'log_lost', 'lapses', 'preemptions', 'suspicion',
    'returns', 'cached', 'said')
  local log = redis.call('LRANGE', log_key(generation), 0, -1)
  local silent_ms = of[10] and now_ms() - of[10] or ''
  return {of[1], of[2], of[3] or '', of[4], of[5] or '0', of[6] or '0', of[7] or '0', of[8] or '0', of[9] or '',
    silent_ms, log}
end

if redis.call('HGET', key, 'claim') == claim then
  return granted()
end
if (redis.call('HGET', ledger_key(model), 'version') or '0') ~= version then
  redis.call('HINCRBY', ledger_key(model), 'conflicts', 1)
  return false
end

local last_finish = 10 + 2 * tonumber(ARGV[10])
for i = 11, last_finish, 2 do
  redis.call('HSET', finishes_key(model, rank), ARGV[i], ARGV[i + 1])
  redis.call('HSET', tenants_key(model, rank), ARGV[i], 'known')
end
redis.call('DEL', skips_key(model))
for i = last_finish + 1, #ARGV, 2 do
  redis.call('HSET', skips_key(model), ARGV[i], ARGV[i + 1])
end
redis.call('HSET', virtual_key(model), rank, virtual_time)
outdate_reads(model)
redis.call('HINCRBY', ledger_key(model), 'claims', 1)

leave_queue(generation)
redis.call('HINCRBY', key, 'epoch', 1)
redis.call('HSET', key, 'state', 'running', 'worker', worker, 'claim', claim, 'due', 0)
redis.call('ZADD', leases_key(model), now_ms() + lease_ms, generation)
local reason = redis.call('HGET', key, 'cancel')
if reason then
  redis.call('HSET', cancels_key(worker), generation, reason)
end
return granted()

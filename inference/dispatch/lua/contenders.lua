-- ARGV: model, how many lapsed leases to return at most.
-- Returns lapsed leases to the queue, then tells who waits: the version, and for each lane its rank, skips, virtual time
-- and heads (tenant, whether it joined, finish tag, generation, arrival, tokens, due cost, weight).
-- Tokens are those that it may come to hold: none if it only has to be ended.
local model, most = ARGV[1], ARGV[2]

local lapsed = redis.call('ZRANGEBYSCORE', leases_key(model), '-inf', now_ms(), 'LIMIT', 0, most)
for _, generation in ipairs(lapsed) do
  redis.call('HINCRBY', generation_key(generation), 'lapses', 1)
  leave_worker(generation)
  join_queue(generation)
end
if #lapsed > 0 then
  redis.call('HINCRBY', ledger_key(model), 'lapses', #lapsed)
  outdate_reads(model)
end

local lanes = {}
for _, rank in ipairs(redis.call('SMEMBERS', ranks_key(model))) do
  local tenants = redis.call('HGETALL', tenants_key(model, rank))
  local heads = {}
  for i = 1, #tenants, 2 do
    local tenant = tenants[i]
    local head = redis.call('ZRANGE', fifo_key(model, rank, tenant), 0, 0)[1]
    local of = redis.call('HMGET', generation_key(head), 'arrival', 'cost', 'due', 'weight', 'closed', 'cancel')
    local tokens = (of[5] or of[6]) and '0' or of[2]
    local finish_tag = redis.call('HGET', finishes_key(model, rank), tenant) or '0'
    heads[#heads + 1] = {tenant, tenants[i + 1], finish_tag, head, of[1], tokens, of[3], of[4]}
  end
  if #heads > 0 then
    local skips = redis.call('HGET', skips_key(model), rank) or '0'
    local virtual_time = redis.call('HGET', virtual_key(model), rank) or '0'
    lanes[#lanes + 1] = {rank, skips, virtual_time, heads}
  end
end
return {redis.call('HGET', ledger_key(model), 'version') or '0', lanes}

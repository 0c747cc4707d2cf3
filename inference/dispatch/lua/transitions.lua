-- The steps between a generation's states, each in one place: put before every function, after keys.lua.
-- States: queued -> running -> ended, running -> queued (lapse, requeue), queued -> withdrawn -> ended.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What was read of the queue no longer holds: a claim that was chosen from it must choose again. Enqueueing needs
-- no new version: it changes no head that was read, so the claim is as good as made just before it.
local function outdate_reads(model)
  redis.call('HINCRBY', ledger_key(model), 'version', 1)
end

-- The fence: whether the generation runs, at this epoch, and (unless nil) with this worker.
local function holds(generation, epoch, worker)
  local held = redis.call('HMGET', generation_key(generation), 'state', 'epoch', 'worker')
  return held[1] == 'running' and held[2] == epoch and (worker == nil or held[3] == worker)
end

-- Into its tenant's FIFO, by the number of its arrival: whoever comes back stands before all that came later.
local function join_queue(generation)
  local key = generation_key(generation)
  local of = redis.call('HMGET', key, 'model', 'rank', 'tenant', 'arrival')
  local model, rank, tenant, arrival = of[1], of[2], of[3], of[4]
  redis.call('SADD', ranks_key(model), rank)
  redis.call('ZADD', queue_key(model, rank), arrival, generation)
  redis.call('ZADD', fifo_key(model, rank, tenant), arrival, generation)
  redis.call('HSETNX', tenants_key(model, rank), tenant, 'joined')
  redis.call('HSET', key, 'state', 'queued')
  redis.call('PUBLISH', wake_channel(model), '')
end

local function leave_queue(generation)
  local of = redis.call('HMGET', generation_key(generation), 'model', 'rank', 'tenant')
  local model, rank, tenant = of[1], of[2], of[3]
  redis.call('ZREM', queue_key(model, rank), generation)
  redis.call('ZREM', fifo_key(model, rank, tenant), generation)
  if redis.call('EXISTS', fifo_key(model, rank, tenant)) == 0 then
    redis.call('HDEL', tenants_key(model, rank), tenant)
  end
end

local function leave_worker(generation)
  local key = generation_key(generation)
  local of = redis.call('HMGET', key, 'model', 'worker')
  redis.call('ZREM', leases_key(of[1]), generation)
  redis.call('HDEL', cancels_key(of[2]), generation)
  redis.call('HDEL', key, 'worker', 'claim')
end

-- What is left of an ended generation, for as long as its log can be read: enough to refuse it a second run.
local function expire(generation, keep_ms)
  redis.call('PEXPIRE', generation_key(generation), keep_ms)
  redis.call('PEXPIRE', log_key(generation), keep_ms)
  redis.call('DEL', presence_key(generation))
end

local function give_back(generation, refund)
  local of = redis.call('HMGET', generation_key(generation), 'model', 'rank', 'tenant')
  if of[1] and refund ~= '0' then
    redis.call('HINCRBY', finishes_key(of[1], of[2]), of[3], '-' .. refund)
    outdate_reads(of[1])
  end
end

local function finish(generation, keep_ms)
  local key = generation_key(generation)
  redis.call('HSET', key, 'state', 'ended')
  redis.call('HDEL', key, 'task', 'cancel')
  expire(generation, keep_ms)
end

-- One stream entry: `head` is a msgpack TickEntry up to its list of publications, which are `count` pairs.
local function stream(head, count, pairs_, maxlen)
  local tick = head .. '\221' .. struct.pack('>I4', count) .. table.concat(pairs_)
  redis.call('XADD', STREAM, 'MAXLEN', '~', maxlen, '*', 'tick', tick)
end

-- The msgpack pair of a generation's id (a string of 32 bytes) and an encoded publication.
local function pair(generation, publication)
  return '\146\217\032' .. generation .. publication
end

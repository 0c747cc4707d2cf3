-- ARGV: generation, reason, epoch floor, milliseconds that its trace is kept, 1 if only one that was never claimed.
-- Returns the outcome, the epoch in which its end is to be written, and the last seq of its log.
local generation, reason, epoch_floor, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local never_claimed = ARGV[5] == '1'
local key = generation_key(generation)
local of = redis.call('HMGET', key, 'state', 'epoch', 'closed', 'model', 'worker')
local state, epoch, closed, model, worker = of[1], tonumber(of[2] or 0), of[3], of[4], of[5]
local last_seq = redis.call('LLEN', log_key(generation))

local function take_out(outcome)
  epoch = math.max(epoch, epoch_floor) + 1
  redis.call('HSET', key, 'state', 'withdrawn', 'epoch', epoch)
  expire(generation, keep_ms)
  return {outcome, epoch, last_seq}
end

local leased = state == 'running' and tonumber(redis.call('ZSCORE', leases_key(model), generation)) > now_ms()

if state == 'ended' or (closed and not leased) then
  return {'ended', epoch, last_seq}
elseif closed then
  return {'running', epoch, last_seq}
elseif not state then
  return take_out('unknown')
elseif state == 'withdrawn' then
  return {'queued', epoch, last_seq}
elseif never_claimed and (state == 'running' or epoch > epoch_floor) then
  return {'running', epoch, last_seq}
elseif state == 'running' then
  if leased then
    redis.call('HSETNX', key, 'cancel', reason)
    redis.call('HSETNX', cancels_key(worker), generation, reason)
    return {'running', epoch, last_seq}
  end
  leave_worker(generation)
  redis.call('HINCRBY', ledger_key(model), 'lapses', 1)
else
  leave_queue(generation)
end
redis.call('HINCRBY', ledger_key(model), 'withdrawals:' .. redis.call('HGET', key, 'rank') .. ':' .. reason, 1)
outdate_reads(model)
return take_out('queued')

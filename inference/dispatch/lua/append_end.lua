-- ARGV: generation, epoch, seq, entry, refund in tag units, milliseconds that its trace is kept, stream's length, head of
-- the stream entry. 1: this is how it ended; 0: refused.
local generation, epoch, seq, entry, refund, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local maxlen, head = ARGV[7], ARGV[8]
local log = log_key(generation)
local of = redis.call('HMGET', generation_key(generation), 'state', 'epoch')

if of[1] == 'ended' then
  return redis.call('LINDEX', log, -1) == entry and 1 or 0
end
if of[1] ~= 'withdrawn' or of[2] ~= epoch or seq ~= redis.call('LLEN', log) + 1 then
  return 0
end
redis.call('RPUSH', log, entry)
stream(head, 1, {pair(generation, entry)}, maxlen)
give_back(generation, refund)
finish(generation, keep_ms)
return 1

-- ARGV: generation, epoch, epoch floor, 1 if preempted, what is added to the suspicion against it, 1 if its worker had
-- not begun with it, and what that one's first run found cached, or nothing.
-- 1: it waits again, first of its tenant's, not charged again; 0: refused.
local generation, epoch, epoch_floor, cached = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[7]
local key = generation_key(generation)

if not holds(generation, epoch) then
  return 0
end
leave_worker(generation)
redis.call('HSET', key, 'epoch', math.max(tonumber(epoch), epoch_floor))
redis.call('HINCRBY', key, 'preemptions', ARGV[4])
redis.call('HINCRBY', key, 'suspicion', ARGV[5])
redis.call('HINCRBY', key, 'returns', ARGV[6])
if cached ~= '' then
  redis.call('HSET', key, 'cached', cached)
end
join_queue(generation)
outdate_reads(redis.call('HGET', key, 'model'))
return 1

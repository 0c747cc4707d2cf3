-- ARGV: generation, epoch, refund in tag units, milliseconds that its trace is kept. 1: done, or was; 0: refused.
local generation, epoch, refund, keep_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local done = redis.call('HMGET', generation_key(generation), 'state', 'epoch')

if done[1] == 'ended' and done[2] == epoch then
  return 1
end
if not holds(generation, epoch) then
  return 0
end
give_back(generation, refund)
leave_worker(generation)
finish(generation, keep_ms)
return 1

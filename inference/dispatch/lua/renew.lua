-- ARGV: worker, lease in milliseconds, (generation, epoch) ... Returns the generations that are no longer its.
local worker, lease_ms = ARGV[1], tonumber(ARGV[2])
local deadline = now_ms() + lease_ms

local lost = {}
for i = 3, #ARGV, 2 do
  local generation, epoch = ARGV[i], ARGV[i + 1]
  if holds(generation, epoch, worker) then
    local model = redis.call('HGET', generation_key(generation), 'model')
    redis.call('ZADD', leases_key(model), deadline, generation)
  else
    lost[#lost + 1] = generation
  end
end
return lost

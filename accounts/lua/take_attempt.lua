-- One log-in is about to be tried: count it as failed for its account and its address, or refuse it.
-- KEYS: the counters. ARGV: each one's limit, then the window in milliseconds.
-- Returns {0, 0}, or {how long to wait in milliseconds, which counter refuses for the first time in its window or 0}.

local wait, first = 0, 0
for i, counter in ipairs(KEYS) do
  if tonumber(redis.call('GET', counter) or '0') >= tonumber(ARGV[i]) then
    local left = math.max(1, redis.call('PTTL', counter))
    wait = math.max(wait, left)
    if redis.call('SET', counter .. ':refused', 1, 'NX', 'PX', left) then first = i end
  end
end
if wait > 0 then return {wait, first} end

for _, counter in ipairs(KEYS) do
  redis.call('INCR', counter)
  redis.call('PEXPIRE', counter, ARGV[#ARGV], 'NX')
end
return {0, 0}

-- A log-in succeeded: it was none of the failures as which it was counted. KEYS: the counters.

for _, counter in ipairs(KEYS) do
  local count = tonumber(redis.call('GET', counter) or '0')
  if count > 1 then redis.call('DECR', counter) elseif count == 1 then redis.call('DEL', counter) end
end
return 0

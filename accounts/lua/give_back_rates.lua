-- KEYS: the rates. ARGV: request. What it took of them counts no more; nothing where it took nothing.
for _, key in ipairs(KEYS) do
  for _, entry in ipairs(redis.call('ZRANGE', key, 0, -1, 'REV')) do
    if string.match(entry, '^(.*):%d+$') == ARGV[1] then
      redis.call('ZREM', key, entry)
      redis.call('DECRBY', sum_key(key), amount_of(entry))
      break
    end
  end
end
return 1

-- KEYS: the rates. ARGV: request. What it took of them counts no more; nothing where it took nothing.

-- What the request took of the rate. It was taken a moment ago: the newest entries are looked at first.
local function entry_of(key, request)
  local start = 0
  while true do
    local entries = redis.call('ZRANGE', key, start, start + PAGE - 1, 'REV')
    if #entries == 0 then return nil end
    for _, entry in ipairs(entries) do
      if string.match(entry, '^(.*):%d+$') == request then return entry end
    end
    start = start + PAGE
  end
end

for _, key in ipairs(KEYS) do
  local entry = entry_of(key, ARGV[1])
  if entry then
    redis.call('ZREM', key, entry)
    redis.call('DECRBY', sum_key(key), amount_of(entry))
  end
end
return 1

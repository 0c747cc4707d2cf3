-- KEYS: the rates. ARGV: request, window in ms, then limit and amount of each rate.
-- Returns {1 or 0: whether all were taken, {used, ms until all is back, ms until the amount fits or -1} of each}.
local request, window = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local rows, fits = {}, true

-- Milliseconds until `needed` of what is used has lapsed; -1: never.
local function freed_in(key, needed)
  local start = 0
  while true do
    local entries = redis.call('ZRANGE', key, start, start + PAGE - 1, 'WITHSCORES')
    if #entries == 0 then return -1 end
    for index = 1, #entries, 2 do
      needed = needed - amount_of(entries[index])
      if needed <= 0 then return math.max(1, tonumber(entries[index + 1]) + window - now) end
    end
    start = start + PAGE
  end
end

for index, key in ipairs(KEYS) do
  local limit, amount = tonumber(ARGV[1 + 2 * index]), tonumber(ARGV[2 + 2 * index])
  local used, wait = used_of(key, now, window), -1
  if used + amount > limit then
    fits = false
    if amount <= limit then wait = freed_in(key, used + amount - limit) end
  end
  rows[index] = {used, resets_in(key, now, window), wait}
end
if not fits then return {0, rows} end

for index, key in ipairs(KEYS) do
  local amount = tonumber(ARGV[2 + 2 * index])
  -- 0: it was counted before, and giving it back failed. It counts once, from now on.
  if redis.call('ZADD', key, now, request .. ':' .. string.format('%d', amount)) == 1 then
    redis.call('INCRBY', sum_key(key), amount)
    rows[index][1] = rows[index][1] + amount
  end
  redis.call('PEXPIRE', key, window + 1000)
  redis.call('PEXPIRE', sum_key(key), window + 1000)
  rows[index] = {rows[index][1], window, -1}
end
return {1, rows}

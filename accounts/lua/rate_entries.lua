-- What a rate remembers: a sorted set of "request:amount" by the millisecond at which it was taken, and their sum beside it.
-- Put before take_rates, give_back_rates and read_rates, behind rate_clock.

-- Entries that are read at once where only few of many are expected to be needed.
local PAGE = 100

local function sum_key(key) return key .. ':sum' end

local function amount_of(entry) return tonumber(string.match(entry, ':(%d+)$')) end

-- What is used of the rate, once what is older than the window has been dropped.
local function used_of(key, now, window)
  local lapsed = redis.call('ZRANGEBYSCORE', key, '-inf', now - window)
  if #lapsed > 0 then
    local amount = 0
    for _, entry in ipairs(lapsed) do amount = amount + amount_of(entry) end
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now - window)
    redis.call('DECRBY', sum_key(key), amount)
  end
  return tonumber(redis.call('GET', sum_key(key)) or '0')
end

-- Milliseconds until all of it is back.
local function resets_in(key, now, window)
  local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  return newest[2] and math.max(0, tonumber(newest[2]) + window - now) or 0
end

-- KEYS: the rates. ARGV: window in ms. Returns {used, ms until all is back, -1} of each.
local window, now, rows = tonumber(ARGV[1]), now_ms(), {}
for index, key in ipairs(KEYS) do
  rows[index] = {used_of(key, now, window), resets_in(key, now, window), -1}
end
return rows

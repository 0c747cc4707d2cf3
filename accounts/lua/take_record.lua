-- A failure is to be recorded: 1 if it gets an event of its own, 0 if it is only counted.
-- KEYS: events of this window, failures without one. ARGV: most events in a window, the window in milliseconds.

local events = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'NX')
if events <= tonumber(ARGV[1]) then return 1 end
redis.call('INCR', KEYS[2])
return 0

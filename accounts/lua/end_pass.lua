-- KEYS: the mark of some work. ARGV: whose it was. Takes it away if it is that one's still: another may have begun since.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0

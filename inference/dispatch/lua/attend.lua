-- ARGV: milliseconds, generation ... Says that the generations are being read, for so long.
for i = 2, #ARGV do
  redis.call('SET', presence_key(ARGV[i]), 1, 'PX', ARGV[1])
end

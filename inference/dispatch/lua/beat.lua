-- ARGV: worker, heartbeat, sent at (Unix seconds), milliseconds it is believed, seconds its name is kept.
local worker, heartbeat, sent_at, ttl_ms, keep_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

redis.call('SET', heartbeat_key(worker), heartbeat, 'PX', ttl_ms)
redis.call('ZADD', WORKERS, sent_at, worker)
redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', sent_at - keep_s)

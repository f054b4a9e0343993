-- Extends the claim of the token ARGV[1] until ARGV[3]; ARGV[2] is now, both in milliseconds.
local known = redis.call('HMGET', KEYS[1], 'token', 'settled')
if known[1] ~= ARGV[1] or known[2] ~= '0' then
    return 0
end
redis.call('HSET', KEYS[1], 'until', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[3] - ARGV[2])
return 1

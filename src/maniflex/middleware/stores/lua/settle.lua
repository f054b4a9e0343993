-- Settles the claim of the token ARGV[1] until ARGV[3]; ARGV[2] is now. ARGV[4] is the answer, if there is one.
-- Run twice with the same arguments, because an answer was lost on the way, it says the same.
local known = redis.call('HMGET', KEYS[1], 'token', 'settled', 'until', 'answer')
if known[1] ~= ARGV[1] then
    return 0
end
if known[2] ~= '0' then
    return (known[3] == ARGV[3] and (known[4] or nil) == ARGV[4]) and 1 or 0
end
redis.call('HSET', KEYS[1], 'settled', '1', 'until', ARGV[3])
if ARGV[4] then
    redis.call('HSET', KEYS[1], 'answer', ARGV[4])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] - ARGV[2])
return 1

-- Claims a key for ARGV[2], a token, until ARGV[4]; ARGV[3] is now, both in milliseconds. ARGV[1] is the fingerprint.
-- Gives the fingerprint, token, whether it is settled, end and answer of the key as it is afterwards.
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'token', 'settled', 'until', 'answer')
if known[1] and tonumber(known[4]) > tonumber(ARGV[3]) then
    return known
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'token', ARGV[2], 'settled', '0', 'until', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[4] - ARGV[3])
return {ARGV[1], ARGV[2], '0', ARGV[4], false}

-- Gives back the claim of the token ARGV[1], unless it is settled.
local known = redis.call('HMGET', KEYS[1], 'token', 'settled')
if known[1] == ARGV[1] and known[2] == '0' then
    redis.call('DEL', KEYS[1])
end
return 1

-- Adds ARGV[1]; a number that is new ends after ARGV[2] milliseconds, unless that is 0.
local new = redis.call('EXISTS', KEYS[1]) == 0
local number = redis.call('INCRBY', KEYS[1], ARGV[1])
if new and ARGV[2] ~= '0' then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return number

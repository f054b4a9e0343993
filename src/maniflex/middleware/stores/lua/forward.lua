-- Keeps the moment ARGV[1] until ARGV[2]; ARGV[3] is now, all in microseconds. Both only move forward.
local stored = redis.call('GET', KEYS[1])
local cutoff, deadline = tonumber(ARGV[1]), tonumber(ARGV[2])
if stored then
    local moment, last = string.match(stored, '^(%S+) (%S+)$')
    cutoff, deadline = math.max(cutoff, tonumber(moment)), math.max(deadline, tonumber(last))
end
local left = deadline - tonumber(ARGV[3])
if left > 0 then
    redis.call('SET', KEYS[1], string.format('%.0f %.0f', cutoff, deadline), 'PX', math.ceil(left / 1000))
end
return 1

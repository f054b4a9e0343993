-- Takes ARGV[3] tokens from a bucket of ARGV[1] that refills over ARGV[2] microseconds, at the moment ARGV[4].
-- The value is "tokens moment". Gives whether they were taken, and the tokens there are.
local limit, window, cost, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens, at = limit, now
local stored = redis.call('GET', KEYS[1])
if stored then
    local left, moment = string.match(stored, '^(%S+) (%S+)$')
    tokens, at = tonumber(left), tonumber(moment)
    if at > now + window then -- from a clock that ran ahead
        tokens, at = limit, now
    elseif at < now then
        tokens, at = math.min(limit, tokens + (now - at) * limit / window), now
    end
end
local granted = 0
if tokens + 1e-6 >= cost then -- a fraction that rounding took
    granted, tokens = 1, math.max(tokens - cost, 0)
    local full = math.ceil(((limit - tokens) * window / limit + at - now) / 1000)
    redis.call('SET', KEYS[1], string.format('%.9f %.0f', tokens, at), 'PX', math.max(full, 1))
end
return {granted, string.format('%.9f', tokens), string.format('%.0f', at)}

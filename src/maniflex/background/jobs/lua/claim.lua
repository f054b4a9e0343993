-- ARGV: now, token, limit, whether the answer to a claim with this token was lost, type...
local now, token, left, repeated = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, 500)) do
    redis.call('ZREM', DELAYED, id)
    local job = redis.call('HMGET', at(id), 'type', 'group')
    if job[1] then ready(id, job[1], job[2]) end
end

local function read(type)
    local key = stream(type)
    local asked = {'XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', left, 'STREAMS', key, '>'}
    local got = redis.pcall(unpack(asked))
    if got and got.err then -- the group is not there yet
        redis.call('XGROUP', 'CREATE', key, GROUP, '0', 'MKSTREAM')
        got = redis.call(unpack(asked))
    end
    return got and got[1][2] or {}
end

local found = {}

-- What the claim took whose answer was lost; the lease of each begins anew.
local function held(type)
    local key = stream(type)
    local pending = redis.pcall('XPENDING', key, GROUP, '-', '+', 10000)
    if pending.err then return end -- there is no stream yet
    for _, item in ipairs(pending) do
        local entries = redis.call('XRANGE', key, item[1], item[1])
        local id = entries[1] and entries[1][2][2]
        local job = id and redis.call('HMGET', at(id), 'token', 'state', 'data', 'attempt')
        if job and job[1] == token and job[2] == 'running' then
            redis.call('XCLAIM', key, GROUP, CONSUMER, 0, item[1], 'JUSTID')
            found[#found + 1] = {job[3], tonumber(job[4])}
            left = left - 1
        end
    end
end

for i = 5, repeated and #ARGV or 0 do held(ARGV[i]) end

for i = 5, #ARGV do
    if left <= 0 then break end
    for _, item in ipairs(read(ARGV[i])) do
        local entry, id = item[1], item[2][2]
        local job = redis.call('HMGET', at(id), 'data', 'entry')
        if job[1] and job[2] == entry then
            local attempt = redis.call('HINCRBY', at(id), 'attempt', 1)
            redis.call('HSET', at(id), 'state', 'running', 'token', token)
            found[#found + 1] = {job[1], attempt}
            left = left - 1
        else
            leave(ARGV[i], entry)
        end
    end
end
return found

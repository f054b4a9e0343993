-- ARGV: token, milliseconds without a sign of life, the latest time it can be or '', type...
-- What is abandoned becomes ready again. A job without attempts left is leased to the caller instead,
-- to be buried: should the caller die over that, it is found here once more.
local token, idle, latest = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found = {}

-- A clock that was put forward makes every job look abandoned, until its worker has renewed it.
local time = redis.call('TIME')
if latest and time[1] * 1000 + time[2] / 1000 > latest then return found end

-- One that was put back makes jobs look delivered in the future, and those of dead workers would wait until then.
local function bring_back(type)
    local pending = redis.pcall('XPENDING', stream(type), GROUP, '-', '+', 10000)
    if pending.err then return end
    for _, item in ipairs(pending) do
        if item[3] == 0 then redis.call('XCLAIM', stream(type), GROUP, CONSUMER, 0, item[1], 'JUSTID') end
    end
end

local function take_back(type, item)
    local entry, id = item[1], item[2][2]
    local job = redis.call('HMGET', at(id), 'data', 'entry', 'attempt', 'max', 'group')
    if not job[1] or job[2] ~= entry then
        leave(type, entry)
        return
    end
    local dead = tonumber(job[3]) >= tonumber(job[4])
    if dead then
        redis.call('HSET', at(id), 'token', token)
    else
        leave(type, entry)
        free(job[5])
        ready(id, type, job[5])
    end
    found[#found + 1] = {job[1], tonumber(job[3]), dead and 1 or 0}
end

for i = 4, #ARGV do
    bring_back(ARGV[i])
    local cursor, rounds = '0-0', 0
    repeat
        local got = redis.pcall('XAUTOCLAIM', stream(ARGV[i]), GROUP, CONSUMER, idle, cursor, 'COUNT', 100)
        if got.err then break end
        for _, item in ipairs(got[2]) do
            if item and item[2] then take_back(ARGV[i], item) end
        end
        cursor, rounds = got[1], rounds + 1
    until cursor == '0-0' or rounds == 50
end
return found

-- ARGV: token, milliseconds without a sign of life, type...
-- What is abandoned becomes ready again. A job without attempts left is leased to the caller instead,
-- to be buried: should the caller die over that, it is found here once more.
local token, idle = ARGV[1], ARGV[2]
local found = {}

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

for i = 3, #ARGV do
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

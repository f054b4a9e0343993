-- ARGV: id, token, ... ; the ids that are no longer the caller's
local gone = {}
for i = 1, #ARGV, 2 do
    local job = redis.call('HMGET', at(ARGV[i]), 'token', 'state', 'type', 'entry')
    if job[1] == ARGV[i + 1] and job[2] == 'running' then
        redis.call('XCLAIM', stream(job[3]), GROUP, CONSUMER, 0, job[4], 'JUSTID')
    else
        gone[#gone + 1] = ARGV[i]
    end
end
return gone

-- ARGV: id
local id = ARGV[1]
local job = redis.call('HMGET', at(id), 'state', 'type', 'group', 'entry')
if not job[1] then return 'unknown' end
if job[1] == 'running' then return 'running' end
redis.call('DEL', at(id))
if job[1] == 'delayed' then
    redis.call('ZREM', DELAYED, id)
elseif job[1] == 'waiting' then
    redis.call('LREM', behind(job[3]), 1, id)
else
    leave(job[2], job[4])
    free(job[3])
end
return 'cancelled'

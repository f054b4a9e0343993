-- Every key begins with KEYS[1], a hash tag, so that all of them live on one node of a cluster:
--   :job:ID       the job: data, type, group, attempt, max, state (delayed, waiting, ready, running),
--                 the entry that stands for it in its stream, and the token of its delivery
--   :ready:TYPE   a stream of jobs that may start; the group `workers` holds those that run
--   :delayed      jobs by the time they are due
--   :fronts       group key → the one job of the group that is ready or running
--   :group:KEY    the jobs of a group that wait behind it
--   :wake         a stream of one entry, for idle workers to wait on
local P = KEYS[1]
local DELAYED, FRONTS, WAKE = P .. ':delayed', P .. ':fronts', P .. ':wake'
local GROUP, CONSUMER = 'workers', 'worker'

local function at(id) return P .. ':job:' .. id end
local function stream(type) return P .. ':ready:' .. type end
local function behind(group) return P .. ':group:' .. group end

local function ready(id, type, group)
    if group ~= '' then
        local front = redis.call('HGET', FRONTS, group)
        if front and front ~= id then
            redis.call('RPUSH', behind(group), id)
            redis.call('HSET', at(id), 'state', 'waiting', 'token', '')
            return
        end
        redis.call('HSET', FRONTS, group, id)
    end
    local entry = redis.call('XADD', stream(type), '*', 'job', id)
    redis.call('HSET', at(id), 'state', 'ready', 'token', '', 'entry', entry)
    redis.call('XADD', WAKE, 'MAXLEN', '1', '*', 'job', id)
end

local function place(id, type, group, due, now)
    if tonumber(due) > tonumber(now) then
        redis.call('ZADD', DELAYED, due, id)
        redis.call('HSET', at(id), 'state', 'delayed', 'token', '')
    else
        ready(id, type, group)
    end
end

-- Keep a new job; 0 when there is one of that id that came with another call.
local function keep(id, call, data, type, group, max, due, now)
    local known = redis.call('HGET', at(id), 'call')
    if known then return known == call and 1 or 0 end
    redis.call('HSET', at(id), 'call', call, 'data', data, 'type', type, 'group', group, 'max', max, 'attempt', 0)
    place(id, type, group, due, now)
    return 1
end

-- The front of the group is free: the next takes it, or the group is forgotten.
local function free(group)
    if group == '' then return end
    redis.call('HDEL', FRONTS, group)
    local id = redis.call('LPOP', behind(group))
    if id then ready(id, redis.call('HGET', at(id), 'type'), group) end
end

local function leave(type, entry)
    redis.call('XACK', stream(type), GROUP, entry)
    redis.call('XDEL', stream(type), entry)
end

-- Type and group of a job whose delivery is the caller's; its stream entry is gone afterwards.
local function take(id, token)
    local job = redis.call('HMGET', at(id), 'token', 'state', 'type', 'group', 'entry')
    if job[1] ~= token or job[2] ~= 'running' then return nil end
    leave(job[3], job[5])
    return job[3], job[4]
end

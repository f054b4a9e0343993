-- ARGV: id, token, attempt, due, now
local id = ARGV[1]
local type, group = take(id, ARGV[2])
if not type then return 0 end
redis.call('HSET', at(id), 'attempt', ARGV[3])
free(group)
place(id, type, group, ARGV[4], ARGV[5])
return 1

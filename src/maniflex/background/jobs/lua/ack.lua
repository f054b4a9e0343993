-- ARGV: id, token
local type, group = take(ARGV[1], ARGV[2])
if not type then return 0 end
redis.call('DEL', at(ARGV[1]))
free(group)
return 1

-- ARGV: id, token, then the eight of `keep` for the dead letter if there is one
local type, group = take(ARGV[1], ARGV[2])
if not type then return 0 end
redis.call('DEL', at(ARGV[1]))
free(group)
if #ARGV > 2 then keep(unpack(ARGV, 3)) end
return 1

-- ARGV: id, call, data, type, group, max, due, now
return keep(unpack(ARGV))

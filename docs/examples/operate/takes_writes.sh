#!/bin/sh
# Ends with 0 if the server at $3:$4 takes writes. The account needs no rights: CREATE ROLE watcher LOGIN.
answer=$(psql --no-psqlrc -At -c "SELECT pg_is_in_recovery()" \
    "host=$3 port=$4 user=watcher dbname=postgres connect_timeout=2")
[ "$answer" = "f" ]

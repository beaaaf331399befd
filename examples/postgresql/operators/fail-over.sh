#!/bin/sh
# Routes around it: the replica takes over, on its own volume; the primary stays down.
set -eu
. "$(dirname "$0")/env.sh"
as_postgres pg_ctl -D "$PRIMARY" -m immediate -w stop >/dev/null
as_postgres pg_ctl -D "$REPLICA" -w promote >/dev/null
ln -sfn replica "$RUN/db"

#!/bin/sh
# A small shop: PostgreSQL on /srv/pg, its replica on /srv/replica, a health check, a backup, and
# two bystanders for noise. Both directories are volumes of their own, /srv/pg a prepared one
# (faultctl volume prepare) where the kernel needs it. Run as root; again, all starts anew.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/env.sh"

pkill -KILL -u postgres || true
while pgrep -u postgres >/dev/null; do sleep 0.1; done
install -d -o postgres -g postgres "$RUN" "$RUN/primary" "$RUN/replica" "$SHOP" "$SHOP/backup"
chown postgres /srv/pg /srv/replica
ln -sfn primary "$RUN/db"
install -m 755 "$here/check.sh" "$SHOP/check"

if [ ! -e "$SHOP/backup/orders.csv" ]; then
    rm -rf "$TEMPLATE"
    as_postgres initdb -D "$TEMPLATE" -A trust --no-locale -E UTF8 --no-sync --no-instructions \
        --wal-segsize=1 >/dev/null
    # Buffers so small that queries read the file, as they do on any table that is large.
    cat >>"$TEMPLATE/postgresql.conf" <<CONF
listen_addresses = ''
shared_buffers = 256kB
max_connections = 20
autovacuum = off
data_sync_retry = on
max_parallel_workers_per_gather = 0
jit = off
CONF
    start "$TEMPLATE" primary
    sql "CREATE TABLE orders AS SELECT i AS id, md5(i::text) AS item FROM generate_series(1, 20000) i;
         CREATE TABLE customers AS SELECT i AS id, md5((-i)::text) AS name FROM generate_series(1, 20000) i"
    # A first read of a row writes hint bits to its page, and a write heals a bad sector.
    for table in orders customers; do sql "VACUUM (FREEZE) $table"; done
    heap=$(sql "SELECT pg_relation_filepath('orders')")
    sql "COPY orders TO '$SHOP/backup/orders.csv'"
    as_postgres pg_ctl -D "$TEMPLATE" -m fast -w stop >/dev/null
    cp "$TEMPLATE/$heap" "$SHOP/backup/orders.heap"
    echo "$heap" >"$SHOP/backup/heap"
fi

rm -rf "$PRIMARY" "$REPLICA"
cp -a "$TEMPLATE" "$PRIMARY"
cp -a "$TEMPLATE" "$REPLICA"
as_postgres touch "$REPLICA/standby.signal"
echo "primary_conninfo = 'host=$RUN/primary'" >>"$REPLICA/postgresql.conf"
ln -sfn "$PRIMARY/$(cat "$SHOP/backup/heap")" /srv/pg/orders.heap
sync -f /srv/pg
start "$PRIMARY" primary
start "$REPLICA" replica
install -d "$SHOP/operators"
install -m 755 "$here/env.sh" "$here"/operators/*.sh "$SHOP/operators"

# The bystanders: a program in a cgroup, and a net namespace with an interface.
if [ ! -d /sys/fs/cgroup/reports ]; then
    mkdir /sys/fs/cgroup/reports
    setsid sh -c 'echo $$ >/sys/fs/cgroup/reports/cgroup.procs; while :; do sleep 5; done' \
        >/dev/null 2>&1 </dev/null &
fi
if [ ! -e /run/netns/cache ]; then
    ip netns add cache
    ip -n cache link add dummy0 type dummy
    ip -n cache link set dummy0 up
fi

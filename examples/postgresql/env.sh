# Sourced by the scripts beside it.
PRIMARY=/srv/pg/db
REPLICA=/srv/replica/db
TEMPLATE=/srv/replica/template
SHOP=/opt/shop
RUN=/run/shop
BIN=$(ls -d /usr/lib/postgresql/*/bin | tail -1)

as_postgres() {
    setpriv --reuid=postgres --regid=postgres --init-groups \
        env HOME=/tmp PATH="$BIN:/usr/bin:/bin" "$@"
}

# Run SQL on the database that the shop uses now.
sql() {
    as_postgres psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$RUN/db" -d postgres -c "$1"
}

# Start a cluster: its directory, and the name of its socket directory below $RUN.
start() {
    as_postgres pg_ctl -D "$1" -l "$RUN/$2.log" -o "-k $RUN/$2" -w -t 120 start >/dev/null
}

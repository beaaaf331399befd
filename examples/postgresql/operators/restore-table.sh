#!/bin/sh
# Repairs: the table comes back from the backup, on other sectors; the old file goes.
set -eu
. "$(dirname "$0")/env.sh"
sql "BEGIN;
     CREATE TABLE restored (LIKE orders INCLUDING ALL);
     COPY restored FROM '$SHOP/backup/orders.csv';
     DROP TABLE orders;
     ALTER TABLE restored RENAME TO orders;
     COMMIT"
sql CHECKPOINT

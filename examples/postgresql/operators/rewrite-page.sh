#!/bin/sh
# Repairs: the page is written again, from the backup; a drive remaps a sector at a write.
set -eu
. "$(dirname "$0")/env.sh"
dd if="$SHOP/backup/orders.heap" of=/srv/pg/orders.heap bs=8k skip=3 seek=3 count=1 \
    conv=notrunc,fsync oflag=direct status=none

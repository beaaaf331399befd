#!/bin/sh
# Repairs nothing: keeps the agent off its controller (by interface $1) for so many seconds ($2),
# until the fault's lease is over.
ip link set dev "$1" down
sleep "$2"
ip link set dev "$1" up

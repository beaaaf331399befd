#!/bin/busybox sh
# First process of a lab node, run from the initramfs by a static busybox:
# finds the root image by its serial, lays a tmpfs over it, sets up what an
# init would (mounts, devices, loopback, one interface), then hands over to
# pid1.sh in the real root. Settings come as lab.KEY=VALUE on the kernel's
# command line. Any failure ends in a panic, which the host sees.
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /newroot /layer
/bin/busybox --install -s /bin
die() { echo "lab-init: $*" >/dev/console; exit 1; }
mount -t proc proc /proc || die "no /proc"
mount -t sysfs sys /sys || die "no /sys"
mount -t devtmpfs dev /dev 2>/dev/null
exec </dev/null >/dev/console 2>&1

host=node ip= gw= ip1= upper=60% udev=0
for word in $(cat /proc/cmdline); do
  case $word in
    lab.host=*) host=${word#*=} ;;
    lab.ip=*) ip=${word#*=} ;;
    lab.gw=*) gw=${word#*=} ;;
    lab.ip1=*) ip1=${word#*=} ;;
    lab.upper=*) upper=${word#*=} ;;
    lab.udev=*) udev=${word#*=} ;;
  esac
done

[ -f /modules/order ] && for module in $(cat /modules/order); do
  insmod "/modules/$module" || die "insmod $module failed"
done

# Virtio disks may be probed after insmod has returned.
find_disk() {
  for entry in /sys/block/vd*; do
    [ "$(cat "$entry/serial" 2>/dev/null)" = "$1" ] && echo "/dev/${entry##*/}" && return 0
  done
  return 1
}
tries=0
until root=$(find_disk lab-root) && lib=$(find_disk lab-lib); do
  tries=$((tries + 1))
  [ $tries -lt 200 ] || die "no root disk"
  usleep 50000
done

mkdir -p /layer/lower /layer/rw
mount -t ext4 -o ro,noload "$root" /layer/lower || die "cannot mount $root"
mount -t tmpfs -o "size=$upper,mode=755" layer /layer/rw || die "no tmpfs"
mkdir -p /layer/rw/upper /layer/rw/work
mount -t overlay -o lowerdir=/layer/lower,upperdir=/layer/rw/upper,workdir=/layer/rw/work \
  root /newroot || die "no overlay"

new=/newroot
mkdir -p $new/opt/faultctl/lib $new/opt/faultctl/code $new/run $new/tmp
mount -t ext4 -o ro,noload "$lib" $new/opt/faultctl/lib || die "cannot mount $lib"
[ -d /rootfs ] && cp -a /rootfs/. $new/

mount --move /dev $new/dev
mkdir -p $new/dev/pts $new/dev/shm $new/dev/disk/by-id
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts $new/dev/pts
mount -t tmpfs -o mode=1777 shm $new/dev/shm
mount -t tmpfs -o mode=755 run $new/run
mkdir -p $new/run/lock $new/run/udev
ln -sf /proc/self/fd $new/dev/fd
ln -sf /proc/self/mounts $new/etc/mtab
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
[ -d /sys/fs/bpf ] && mount -t bpf bpf /sys/fs/bpf
[ -d /sys/kernel/debug ] && mount -t debugfs debugfs /sys/kernel/debug
[ -d /sys/kernel/tracing ] && mount -t tracefs tracefs /sys/kernel/tracing
[ -d /sys/kernel/security ] && mount -t securityfs securityfs /sys/kernel/security
[ -d /sys/kernel/config ] && mount -t configfs configfs /sys/kernel/config

for entry in /sys/block/vd*; do
  serial=$(cat "$entry/serial")
  [ -n "$serial" ] && ln -sf "../../${entry##*/}" "$new/dev/disk/by-id/virtio-$serial"
done
for entry in /sys/class/virtio-ports/*; do
  [ -e "$entry/name" ] || continue
  mkdir -p $new/dev/virtio-ports
  ln -sf "../${entry##*/}" "$new/dev/virtio-ports/$(cat "$entry/name")"
done

hostname "$host"
echo "$host" >$new/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$host" >$new/etc/hosts
ifconfig lo 127.0.0.1 netmask 255.0.0.0 up
[ -n "$ip" ] && ip addr add "$ip" dev eth0 && ip link set eth0 up
[ -n "$gw" ] && ip route add default via "$gw"
[ -n "$ip1" ] && ip addr add "$ip1" dev eth1 && ip link set eth1 up

mount --move /sys $new/sys
mount --move /proc $new/proc
exec switch_root $new /usr/bin/busybox sh /opt/faultctl/guest/pid1.sh "$udev"

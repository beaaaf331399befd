#!/bin/busybox sh
# First process of a lab node, run from the initramfs by a static busybox: loads
# modules, mounts the root image with a tmpfs over it, hands over to pid1.sh.
# The code under test lies in /rootfs and is the overlay's middle layer, so it is
# not copied, and this file system stays (a chroot, not a switch_root).
#
# Starting a program is what costs time under emulation. Hence: folders come
# with the archive, mounts with three tables, and the rest uses shell built-ins.
export PATH=/bin
bb=/bin/busybox
die() {
  echo "lab-init: $*" >/dev/console
  exit 1 # the kernel panics, which the host sees
}

$bb mount -a -T /etc/fstab.early || die "cannot mount /proc, /sys, /dev"
exec </dev/null >/dev/console 2>&1
read -r cmdline </proc/cmdline
for word in $cmdline; do
  case $word in
    lab.upper=*) upper=${word#*=} ;;
  esac
done
[ -e /modules.list ] && { read -r modules </modules.list; $bb modprobe -a $modules || die "modprobe"; }

# Virtio disks may be probed a little after their driver has been loaded.
serial() { serial=; [ -e "$1" ] && read -r serial <"$1"; [ "$serial" = "$2" ]; }
tries=0
until serial /sys/block/vda/serial lab-root && serial /sys/block/vdb/serial lab-lib; do
  tries=$((tries + 1))
  [ $tries -lt 500 ] || die "no root disk"
  $bb usleep 20000
done

$bb mount -t tmpfs -o "size=${upper:-60%},mode=755" layer /layer || die "no tmpfs"
$bb mkdir -p /layer/upper /layer/work /dev/pts /dev/shm /dev/disk/by-id /dev/virtio-ports
$bb mount -a -T /etc/fstab.root || die "cannot mount the root image"
# Which of these a kernel has is its own affair: /dev/null is for the others.
$bb mount -a -T /etc/fstab.late 2>/dev/null
cd /newroot || die "no new root"
# The name space's root, as on a real node: setns(2) into it leads there, whatever is chrooted
# (`runc exec`), and systemd gives services roots of their own.
$bb mount --move . / || die "cannot move the root"
exec $bb chroot . /usr/bin/busybox sh /opt/faultctl/guest/pid1.sh
die "cannot start pid1.sh"

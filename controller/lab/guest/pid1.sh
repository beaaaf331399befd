# Process 1 of a lab node. A shell that waits for a foreground child also reaps
# every orphan that is re-parented to it, which is all we ask of an init.
# Settings come as lab.KEY=VALUE on the kernel's command line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 TERM=dumb
cd /opt/faultctl || exit 1
exec </dev/null >/dev/console 2>&1
host=node ip= gw= ip1= udev= init=
read -r cmdline </proc/cmdline
for word in $cmdline; do
  case $word in
    lab.host=*) host=${word#*=} ;;
    lab.ip=*) ip=${word#*=} ;;
    lab.gw=*) gw=${word#*=} ;;
    lab.ip1=*) ip1=${word#*=} ;;
    lab.udev=*) udev=${word#*=} ;;
    lab.init=*) init=${word#*=} ;;
  esac
done
echo "$host" >/proc/sys/kernel/hostname
echo "$host" >/etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$host" >/etc/hosts

network() {
  {
    echo "link set lo up"
    [ -n "$ip" ] && echo "addr add $ip dev eth0" && echo "link set eth0 up"
    [ -n "$gw" ] && echo "route add default via $gw dev eth0"
    [ -n "$ip1" ] && echo "addr add $ip1 dev eth1" && echo "link set eth1 up"
  } | /sbin/ip -force -batch - # by its path, else the shell takes busybox's own
  echo $? >/run/lab-network # the guest service waits for this
}
network &
if [ -n "$udev" ]; then
  /usr/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle --timeout=120
fi
if [ "$init" = systemd ]; then
  # With an id it is not the first boot, at which all units would get their presets.
  read -r uuid </proc/sys/kernel/random/uuid
  echo "$uuid" | busybox tr -d - >/etc/machine-id
  mkdir -p /run/systemd/system
  cat >/run/systemd/system/lab.service <<EOF
[Unit]
DefaultDependencies=no
[Service]
WorkingDirectory=/opt/faultctl
ExecStart=/usr/bin/python3 -E -s -S -m guest.labd
Environment=PATH=$PATH HOME=$HOME LANG=$LANG TERM=$TERM
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
StandardOutput=tty
TTYPath=/dev/console
EOF
  printf '[Unit]\nWants=lab.service\n' >/run/systemd/system/lab.target
  # Its own target: nothing of what boots a whole Debian.
  exec /usr/lib/systemd/systemd --system --unit=lab.target
fi
while :; do
  # Without site and user directories: start-up time counts here.
  /usr/bin/python3 -E -s -S -m guest.labd
  echo "lab-init: guest service ended with $?"
  sleep 1
done

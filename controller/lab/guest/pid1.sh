# Process 1 of a lab node. A shell that waits for a foreground child also
# reaps every orphan that is re-parented to it, which is all we ask of an init.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LANG=C.UTF-8 TERM=dumb
cd /opt/faultctl || exit 1
echo 1 >/proc/sys/kernel/sysrq
if [ "$1" = 1 ]; then
  /usr/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle --timeout=120
fi
while :; do
  # Without site and user directories: start-up time counts here.
  /usr/bin/python3 -E -s -S -m guest.labd </dev/null >/dev/console 2>&1
  echo "lab-init: guest service ended with $?" >/dev/console
  sleep 1
done

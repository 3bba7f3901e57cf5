#!/bin/busybox sh
# The guest's first program: loads the modules, sets up eth0, then runs each line that the console gives, and ends each
# answer with "@@end" and the exit status. The guest's address is on the kernel's command line.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
stty -echo
while read -r module; do
    insmod "$module" || echo "@@failed loading $module"
done </modules/order
ip link set lo up
ip address add "$address" dev eth0 && ip link set eth0 up || echo "@@failed setting up eth0"
echo "@@ready"
while read -r line; do
    eval "$line"
    echo "@@end $?"
done
poweroff -f

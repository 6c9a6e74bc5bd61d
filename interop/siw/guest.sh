#!/bin/sh
# The first process of the guest: siw on the network card, and a shell for each connection to port 9000.
export PATH=/usr/bin:/bin LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
ulimit -l unlimited
ip link set lo up
modprobe crc32c_generic
modprobe e1000
modprobe rdma_ucm
modprobe siw
mdev -s
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
# Without a carrier the port of siw would be down, which perftest refuses.
until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do usleep 20000; done
rdma link add siw0 type siw netdev eth0
until ibv_devinfo | grep -q PORT_ACTIVE; do usleep 20000; done
ibv_devinfo
echo "guest: kernel $(uname -r) is ready after $(cut -d' ' -f1 /proc/uptime) s"
nc -ll -p 9000 -e /bin/sh
poweroff -f

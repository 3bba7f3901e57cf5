#!/usr/bin/env bash
# With AccECN, a Linux guest sends single segments, although TSO of its virtio-net card stays on.
#
# Version: Debian's linux-binary and linux-modules 7.3.4+deb13-cloud-amd64 (trixie-backports), emulated by QEMU. Needs root, apt, ip
#   (iproute2), qemu-system-x86_64 and a static busybox.
# Behaviour: net.ipv4.tcp_ecn = 3 at both ends negotiates AccECN (RFC 9768). TCP then marks its super-frames SKB_GSO_TCP_ACCECN. Drivers
#   without NETIF_F_GSO_ACCECN, such as virtio_net and tun, get segments that the kernel made in software. Nothing reports this.
# Seen: tcp_ecn 0: super-frames; tcp_ecn 3: single segments
set -euo pipefail
version=7.3.4+deb13-cloud-amd64
work=$(mktemp -d) ns=find-accecn-$$
trap 'ip netns del "$ns" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
mkdir -p lists/partial debs/partial root/bin root/modules tree
cat >suite.sources <<S
Types: deb
URIs: $(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | head -1)
Suites: trixie-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
S
touch status
apt=(-q -o "Dir::Etc::SourceList=$work/suite.sources" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists"
    -o "Dir::State::Status=$work/status" -o "Dir::Cache=$work" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update >/dev/null
apt-get "${apt[@]}" download "linux-binary-$version" "linux-modules-$version" >/dev/null
for package in ./*.deb; do dpkg-deb -x "$package" tree; done
modules=tree/usr/lib/modules/$version
for module in net/core/failover drivers/net/net_failover drivers/net/virtio_net; do
    xz -dc "$modules/kernel/$module.ko.xz" >"root/modules/${module##*/}.ko"
done
cp "$(command -v busybox)" root/bin/busybox
cat >root/init <<'S'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin
for module in failover net_failover virtio_net; do insmod /modules/$module.ko; done
unshare -n sleep 1000 &
sleep 1
peer=$!
other() { nsenter -t "$peer" -n "$@"; }
ip link set eth1 netns "$peer"
ip link set eth0 up && ip addr add 198.18.0.1/24 dev eth0
other ip link set eth1 up && other ip addr add 198.18.0.2/24 dev eth1
for mode in 0 3; do
    echo $mode >/proc/sys/net/ipv4/tcp_ecn
    other sh -c "echo $mode >/proc/sys/net/ipv4/tcp_ecn; sleep 100 | nc -l -p 500$mode >/dev/null" &
    sleep 2
    sent() { cat /sys/class/net/eth0/statistics/tx_$1; }
    packets=$(sent packets) bytes=$(sent bytes)
    head -c 8000000 /dev/zero | nc 198.18.0.2 500$mode
    echo "mean $mode: $((($(sent bytes) - bytes) / ($(sent packets) - packets)))"
done
poweroff -f
S
chmod +x root/init
(cd root && find . | cpio --quiet -o -H newc) >initramfs
ip netns add "$ns"
ip -n "$ns" link add bridge type bridge
ip -n "$ns" link set bridge up
cards=()
for n in 0 1; do
    ip -n "$ns" tuntap add "tap$n" mode tap vnet_hdr
    ip -n "$ns" link set "tap$n" up master bridge
    cards+=(-netdev "tap,id=n$n,ifname=tap$n,script=no,downscript=no,vhost=off" -device "virtio-net-pci,netdev=n$n,romfile=,mac=02:00:00:00:00:0$n")
done
timeout 120 ip netns exec "$ns" qemu-system-x86_64 -accel tcg -m 384 -nographic -no-reboot "${cards[@]}" \
    -kernel "$modules/vmlinuz" -initrd initramfs -append 'console=ttyS0 panic=-1 quiet' </dev/null >out 2>&1 || { tail -20 out; exit 1; }
mean() { grep -o "mean $1: [0-9]*" out | cut -d" " -f3; }
kind() { (($1 > 1600)) && echo super-frames || echo 'single segments'; }
seen="tcp_ecn 0: $(kind "$(mean 0)"); tcp_ecn 3: $(kind "$(mean 3)")"
echo "Linux $version, $(qemu-system-x86_64 --version | head -1): $seen (mean packet: $(mean 0) and $(mean 3) bytes)"
[[ $seen == "tcp_ecn 0: super-frames; tcp_ecn 3: single segments" ]]

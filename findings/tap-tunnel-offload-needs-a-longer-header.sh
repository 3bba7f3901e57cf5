#!/usr/bin/env bash
# A TAP accepts tunnel segmentation with a vnet header that is too short for it, and then every read fails.
#
# Version: Linux 6.18.44 (the flags came with 6.17). Needs root, ip (iproute2) and python3.
# Behaviour: TUNSETVNETHDRSZ 12 and TUNSETOFFLOAD with TUN_F_UDP_TUNNEL_GSO both succeed, in either order. write(2) works. Each
#   read(2) then fails with EFAULT: the frame is lost and tx_dropped stays 0. With a header of 24 bytes, the frame arrives.
# Seen: header 12: EFAULT, tx_dropped 0; header 24: 60 bytes, tx_dropped 0
set -euo pipefail
ns=find-tun-$$
trap 'ip netns del "$ns"' EXIT
ip netns add "$ns"
ip netns exec "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
seen=$(ip netns exec "$ns" timeout 20 python3 - <<'PY'
import errno, fcntl, os, socket, struct, subprocess
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
CHECKSUM, TSO4, TSO6, TUNNEL = 0x01, 0x02, 0x04, 0x80
def read_one(header_len):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"t0", 0x0002 | 0x1000 | 0x4000))
    fcntl.ioctl(tap, TUNSETVNETHDRSZ, struct.pack("i", header_len))
    fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM | TSO4 | TSO6 | TUNNEL)
    subprocess.run(["ip", "link", "set", "t0", "up"], check=True)
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sender.bind(("t0", 0))
    sender.send(bytes.fromhex("02000000000b02000000000a88b5") + bytes(46))
    try:
        got = f"{len(os.read(tap, 4096)) - header_len} bytes"
    except OSError as error:
        got = errno.errorcode[error.errno]
    dropped = open("/sys/class/net/t0/statistics/tx_dropped").read().strip()
    os.close(tap)
    return f"header {header_len}: {got}, tx_dropped {dropped}"
print("; ".join(read_one(header_len) for header_len in (12, 24)))
PY
)
echo "Linux $(uname -r): $seen"
[[ $seen == "header 12: EFAULT, tx_dropped 0; header 24: 60 bytes, tx_dropped 0" ]]

#!/usr/bin/env bash
# With UDP receive coalescing on, Linux marks a UDP datagram over IPv6 without a checksum as verified.
#
# Version: Linux 6.18.44, a veth. Needs root, ip (iproute2), ethtool and python3.
# Behaviour: a packet socket reports TP_STATUS_CSUM_VALID for the datagram with checksum 0 once rx-udp-gro-forwarding (or
#   rx-gro-list) is on. IPv6 requires the checksum, and a receiver discards such a datagram (RFC 8200, 8.1). Without UDP
#   coalescing none of the datagrams is marked. A test with random wrong checksums must exclude 0.
# Seen: off: right 0, none 0, wrong 0; on: right 1, none 1, wrong 0
set -euo pipefail
ns=find-zero-$$
trap 'ip netns del "$ns"' EXIT
ip netns add "$ns"
ip -n "$ns" link add v0 type veth peer name v1
ip -n "$ns" link set v0 up
ip -n "$ns" link set v1 up
ask() {
    ip netns exec "$ns" ethtool -K v1 gro on rx-udp-gro-forwarding "$1"
    ip netns exec "$ns" timeout 20 python3 - <<'PY'
import socket, struct
SOL_PACKET, PACKET_AUXDATA, CSUM_VALID = 263, 8, 0x80
source, destination = (socket.inet_pton(socket.AF_INET6, a) for a in ("fd00::1", "fd00::2"))
def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def frame(kind):
    udp = struct.pack(">4H", 1000, 2000, 16, 0) + b"payload."
    right = checksum(source + destination + struct.pack(">IHBB", 16, 0, 0, 17) + udp)
    field = {"right": right, "none": 0, "wrong": right ^ 0x0101}[kind]
    ip = struct.pack(">IHBB", 6 << 28, 16, 17, 64) + source + destination
    return bytes.fromhex("02000000000b02000000000a86dd") + ip + udp[:6] + struct.pack(">H", field) + udp[8:]
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
sender.bind(("v0", 0))
reader = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86dd))
reader.bind(("v1", 0x86dd))
reader.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
seen = []
for kind in ("right", "none", "wrong"):
    sender.send(frame(kind))
    data, notes, _, _ = reader.recvmsg(2048, 256)
    while data[20] != 17:
        data, notes, _, _ = reader.recvmsg(2048, 256)
    (status,) = struct.unpack("<I", notes[0][2][:4])
    seen.append(f"{kind} {int(status & CSUM_VALID > 0)}")
print(", ".join(seen))
PY
}
seen="off: $(ask off); on: $(ask on)"
echo "Linux $(uname -r): $seen"
[[ $seen == "off: right 0, none 0, wrong 0; on: right 1, none 1, wrong 0" ]]

#!/usr/bin/env bash
# A packet socket with a virtio header marks a super-frame of TCP in VXLAN as plain TCP over IPv4.
#
# Version: Linux 6.18.44, veth and VXLAN as the kernel sets them up. Needs root, ip (iproute2) and python3.
# Behaviour: a TCP stream in a VXLAN tunnel crosses a veth. The socket at the other end reads super-frames with gso_type 1
#   (VIRTIO_NET_HDR_GSO_TCPV4), though the outer packet is UDP to port 4789. csum_start lies after the inner IP header. No
#   flag marks the tunnel, so a reader that segments by gso_type must look into the packet.
# Seen: outer UDP/4789, gso_type 1, csum_start 84, hdr_len 116
set -euo pipefail
here=$(mktemp -d) a=find-a-$$ b=find-b-$$
trap 'ip netns del "$a"; ip netns del "$b"; rm -r "$here"' EXIT
ip netns add "$a"
ip netns add "$b"
ip -n "$a" link add veth0 type veth peer name veth0 netns "$b"
number=1
for ns in "$a" "$b"; do
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=1
    ip -n "$ns" addr add 198.18.0.$number/24 dev veth0
    ip -n "$ns" link set veth0 up
    ip -n "$ns" link add vx0 type vxlan id 7 local 198.18.0.$number remote 198.18.0.$((3 - number)) dstport 4789 dev veth0
    ip -n "$ns" addr add 198.18.9.$number/24 dev vx0
    ip -n "$ns" link set vx0 up
    number=$((number + 1))
done

cat >"$here/receive.py" <<'PY'
import socket, struct, threading
listener = socket.create_server(("198.18.9.2", 5001))
reader = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
reader.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
reader.bind(("veth0", 3))
reader.settimeout(10)
def drain():
    peer = listener.accept()[0]
    while peer.recv(1 << 16):
        pass
threading.Thread(target=drain, daemon=True).start()
print("ready", flush=True)
while True:
    data, address = reader.recvfrom(1 << 17)
    flags, gso_type, hdr_len, gso_size, csum_start, csum_offset = struct.unpack("<BBHHHH", data[:10])
    frame = data[10:]
    if gso_type and address[2] != socket.PACKET_OUTGOING:
        assert frame[12:14] == b"\x08\x00" and frame[23] == 17, frame[:40].hex()
        port = struct.unpack("!H", frame[36:38])[0]
        print(f"outer UDP/{port}, gso_type {gso_type}, csum_start {csum_start}, hdr_len {hdr_len}", flush=True)
        break
PY
cat >"$here/send.py" <<'PY'
import socket
with socket.create_connection(("198.18.9.2", 5001), timeout=10) as peer:
    peer.sendall(bytes(4 << 20))
PY
ip netns exec "$b" timeout 20 python3 "$here/receive.py" >"$here/out" &
receiver=$!
until grep -q ready "$here/out"; do sleep 0.1; done
ip netns exec "$a" timeout 20 python3 "$here/send.py" 2>/dev/null || true
wait "$receiver"
seen=$(tail -n 1 "$here/out")
echo "Linux $(uname -r): $seen"
[[ $seen == "outer UDP/4789, gso_type 1, csum_start 84, hdr_len 116" ]]

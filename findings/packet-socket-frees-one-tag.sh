#!/usr/bin/env bash
# A packet socket sends a full-sized frame with one 802.1Q tag, but refuses one with a service tag or with two tags.
#
# Version: Linux 6.18.44, a veth with MTU 1500. Needs root, ip (iproute2) and python3.
# Behaviour: the limit is the interface's MTU and Ethernet header, plus four bytes if the first EtherType is 0x8100. A frame with
#   1500 bytes of payload and the tag 0x88a8, or with two tags, fails with EMSGSIZE, though the MTU of Linux' own VLAN
#   interfaces counts no tag. A bridge over packet sockets loses full-sized QinQ frames until the interface's MTU is raised.
# Seen: no tag: 1514; 8100: 1518; 88a8: EMSGSIZE; 8100 8100: EMSGSIZE; 88a8 8100: EMSGSIZE
set -euo pipefail
ns=find-tag-$$
trap 'ip netns del "$ns"' EXIT
ip netns add "$ns"
ip -n "$ns" link add v0 type veth peer name v1
ip -n "$ns" link set v0 up
ip -n "$ns" link set v1 up
seen=$(ip netns exec "$ns" timeout 20 python3 - <<'PY'
import errno, socket
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
sender.bind(("v0", 0))
def send(*tags):
    tagged = b"".join(bytes.fromhex(tag) + b"\0\5" for tag in tags)
    frame = bytes.fromhex("02000000000b02000000000a") + tagged + b"\x88\xb5" + bytes(1500)
    try:
        return sender.send(frame)
    except OSError as error:
        return errno.errorcode[error.errno]
cases = [(), ("8100",), ("88a8",), ("8100", "8100"), ("88a8", "8100")]
print("; ".join(f"{' '.join(tags) or 'no tag'}: {send(*tags)}" for tags in cases))
PY
)
echo "Linux $(uname -r): $seen"
[[ $seen == "no tag: 1514; 8100: 1518; 88a8: EMSGSIZE; 8100 8100: EMSGSIZE; 88a8 8100: EMSGSIZE" ]]

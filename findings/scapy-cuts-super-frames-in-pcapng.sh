#!/usr/bin/env bash
# scapy truncates a packet of a pcapng file at 65,535 bytes without a warning, but reports the full length on the wire.
#
# Version: scapy 2.6.1 (PyPI). Needs python3 with venv.
# Behaviour: an enhanced packet block may hold more than 64 KiB, as in a capture of super-frames before segmentation. scapy's
#   reader returns 65,535 bytes of a packet of 70,000. The other bytes are lost, `wirelen` is 70000, and nothing is printed.
# Seen: scapy 2.6.1: 65535 of 70000 bytes, wirelen 70000, 0 warnings
set -euo pipefail
here=$(mktemp -d)
trap 'rm -r "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet scapy==2.6.1
cat >"$here/read.py" <<'PY'
import struct, sys, warnings
def block(kind, body):
    body += bytes(-len(body) % 4)
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length
frame = bytes.fromhex("02000000000b02000000000a88b5") + bytes(range(256)) * 274
frame = frame[:70000]
with open(sys.argv[1], "wb") as out:
    out.write(block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)))
    out.write(block(1, struct.pack("<HHI", 1, 0, 0)))  # Ethernet, no snap length
    out.write(block(6, struct.pack("<IIIII", 0, 0, 0, len(frame), len(frame)) + frame))
import scapy
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from scapy.utils import rdpcap
    packet = rdpcap(sys.argv[1])[0]
print(f"scapy {scapy.__version__}: {len(packet)} of {len(frame)} bytes, wirelen {packet.wirelen}, {len(caught)} warnings")
PY
seen=$("$here/venv/bin/python" "$here/read.py" "$here/one.pcapng" 2>&1)
echo "$seen"
[[ $seen == "scapy 2.6.1: 65535 of 70000 bytes, wirelen 70000, 0 warnings" ]]

#!/usr/bin/env bash
# TUNSETOFFLOAD switches offloads on again that an administrator switched off at a TAP by `ethtool -K`.
#
# Version: Linux 6.18.44, ethtool 6.1. Needs root, ip (iproute2), ethtool and python3.
# Behaviour: the program behind a TAP allows checksums and TSO. An administrator switches TSO off: the wanted features of the
#   interface lose it. The next TUNSETOFFLOAD with the very same flags switches TSO on again, because it also writes the wanted
#   features. A program that repeats the call must first read the features and afterwards restore them.
# Seen: allowed: on; ethtool -K tso off: off; the same TUNSETOFFLOAD again: on
set -euo pipefail
ns=find-tap-$$
trap 'ip netns del "$ns"' EXIT
ip netns add "$ns"
seen=$(ip netns exec "$ns" timeout 20 python3 - <<'PY'
import fcntl, os, struct, subprocess
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
CHECKSUM_AND_TSO = 0x01 | 0x02 | 0x04
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"t0", 0x0002 | 0x1000 | 0x4000))  # TAP, no packet info, vnet header
def tso():
    features = subprocess.run(["ethtool", "-k", "t0"], capture_output=True, text=True, check=True).stdout
    return next(line.split(": ")[1] for line in features.splitlines() if "tx-tcp-segmentation" in line)
fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM_AND_TSO)
words = [f"allowed: {tso()}"]
subprocess.run(["ethtool", "-K", "t0", "tso", "off"], check=True)
words.append(f"ethtool -K tso off: {tso()}")
fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM_AND_TSO)
words.append(f"the same TUNSETOFFLOAD again: {tso()}")
print("; ".join(words))
PY
)
echo "Linux $(uname -r): $seen"
[[ $seen == "allowed: on; ethtool -K tso off: off; the same TUNSETOFFLOAD again: on" ]]

#!/bin/sh
# Makes an encrypted link between the namespaces ofr-left and ofr-right, sends TCP over it, counts the frames on the
# wire, and removes everything again. Run it as root; offramp, ip and tcpdump must be in the path.
set -eu
for program in offramp ip tcpdump; do
    command -v "$program" > /dev/null || { echo "$0: there is no $program in the path; install it first" >&2; exit 1; }
done
here=$(dirname "$0")
keys=/run/offramp-ipsec-link
umask 077
# Each run makes new keys, so the sequence numbers that the daemon stored for the previous keys are deleted too.
rm -rf "$keys"
mkdir "$keys"
for key in left-to-right right-to-left; do
    head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$keys/$key.key"
done
# Prints the process ID of the daemon, if it runs.
daemon() {
    offramp show --control "$keys/control.sock" --json 2> /dev/null | sed 's/^[^,]*,"process":\([0-9]*\).*/\1/'
}
clean_up() {
    trap - EXIT
    for process in ${capture:-} ${server:-} $(daemon); do
        kill "$process" 2> /dev/null || true
    done
    wait
    ip netns delete ofr-left 2> /dev/null || true
    ip netns delete ofr-right 2> /dev/null || true
    ip link delete ofrline0 2> /dev/null || true
    rm -rf "$keys"
}
trap clean_up EXIT
ip netns add ofr-left
ip netns add ofr-right
ip link add ofrline0 type veth peer name ofrline1
for end in ofrline0 ofrline1; do
    # Without IPv6, the kernel itself sends no frame on the wire.
    [ ! -e /proc/sys/net/ipv6 ] || echo 1 > "/proc/sys/net/ipv6/conf/$end/disable_ipv6"
    # Room for two VLAN tags.
    ip link set "$end" mtu 1508 up
done
tcpdump -q -i ofrline0 -w "$keys/ipsec-link.pcap" 2> /dev/null &
capture=$!
ip netns exec ofr-right offramp ttcp --serve --once &
server=$!
offramp up --detach "$here/ipsec-link.toml"
# Static neighbours, so that the hosts send no ARP, and the wire carries only ESP.
ip -n ofr-left neighbour replace 198.18.0.2 lladdr 02:00:00:00:00:02 dev ofr0
ip -n ofr-right neighbour replace 198.18.0.1 lladdr 02:00:00:00:00:01 dev ofr0
ip netns exec ofr-left offramp ttcp --to 198.18.0.2 --seconds 2
offramp sa show --control "$keys/control.sock"
kill "$capture"
wait "$capture" || true
capture=
echo "frames on the wire: $(tcpdump -r "$keys/ipsec-link.pcap" 2> /dev/null | wc -l)"
echo "of them not ESP: $(tcpdump -r "$keys/ipsec-link.pcap" 'not (ip proto 50 or ip6 protochain 50)' 2> /dev/null | wc -l)"

#!/bin/bash
# Measures two adapters on a cable with iperf3 and ethtool: each offload on and off, 5 s in each setting. Run it as
# root. Hosts A and B run on processor 0 and the adapters on processor 1, as in `offramp lab`. At its end, the script
# removes everything that it has created.
set -eu
for program in offramp ip ethtool iperf3; do
    command -v "$program" > /dev/null || { echo "$0: there is no $program in the path; install it first" >&2; exit 1; }
done
cd "$(mktemp -d)"
clean_up() {
    trap - EXIT
    [ ! -e iperf3.pid ] || kill "$(tr -d '\0' < iperf3.pid)" || true
    kill "$(cat offramp.pid 2> /dev/null)" 2> /dev/null || true
    ip netns delete ofr-a 2> /dev/null || true
    ip netns delete ofr-b 2> /dev/null || true
    rm -r "$PWD"
}
trap clean_up EXIT
cat > bench.toml <<END
[[port]]
name = "a"
host = { tap = "ofr0", namespace = "ofr-a", address = "198.18.0.1/24" }
wire = { cable = "b" }
cpus = [1]
moderation = "off"

[[port]]
name = "b"
host = { tap = "ofr0", namespace = "ofr-b", address = "198.18.0.2/24" }
wire = { cable = "a" }
cpus = [1]
moderation = "off"
END
ip netns add ofr-a
ip netns add ofr-b
offramp up --detach bench.toml 2> offramp.log || { cat offramp.log >&2; exit 1; }
offramp show --json | sed 's/^[^,]*,"process":\([0-9]*\).*/\1/' > offramp.pid
for ns in ofr-a ofr-b; do      # no pacing; the hosts' receive work runs on processor 0, as their programs do
    ip netns exec $ns sysctl -q -w net.ipv4.tcp_congestion_control=reno
    ip netns exec $ns sh -c 'echo 1 > /sys/class/net/ofr0/queues/rx-0/rps_cpus'
done
ip netns exec ofr-b taskset -c 0 iperf3 -s -D -I "$PWD/iperf3.pid"

ticks() { awk '/^cpu0 / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }     # non-idle time of processor 0, in 1/100 s
run() {                                                                     # run NAME [iperf3's options]
    name=$1; shift
    begin=$(ticks)
    bytes=$(ip netns exec ofr-a taskset -c 0 iperf3 -c 198.18.0.2 -t 5 -J "$@" |
        awk '/"sum_received"/ { r = 1 } r && /"bytes"/ { gsub(/[^0-9]/, ""); print; exit }')
    awk -v name="$name" -v b="$bytes" -v t=$(($(ticks) - begin)) \
        'BEGIN { printf "%-44s  %6.2f Gbit/s  %6.2f host CPU s/GB\n", name, b * 8 / 5e9, t / 100 / (b / 1e9) }'
}
sizes() { run "$1, writes of 128 KiB"; run "$1, writes of 8 KiB" -l 8K; }
adapters() { for port in a b; do offramp set $port "$@" > set.log; done; }
hosts() {                                                                   # hosts SEGMENTS [ethtool's features]
    for ns in ofr-a ofr-b; do
        ip -n $ns link set ofr0 gso_max_segs $1
        [ $# = 1 ] || ip netns exec $ns ethtool -K ofr0 "${@:2}" > ethtool.log
    done
}

sizes "all on"
adapters rsc off;         sizes "receive coalescing off"
adapters rsc on
hosts 65535 tso off;      sizes "large send off, host GSO"
hosts 65535 tx-checksum-ip-generic off;     sizes "no transmit checksum, host GSO"
hosts 65535 tx-checksum-ip-generic on gso off
hosts 1;                  sizes "large send off"
adapters all off;         sizes "all off"
for ns in ofr-a ofr-b; do ip netns exec $ns sysctl -q -w net.ipv4.tcp_congestion_control=bbr; done
sizes "all off, bbr"

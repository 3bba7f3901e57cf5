//! Tests of the parameters' limits.

use super::*;

#[test]
fn the_streams_share_the_bytes_and_none_is_lost_in_the_division() {
    let params = Params { streams: 4, amount: Amount::Bytes(1003), direction: Direction::Both, ..Params::default() };
    let sum = |range: std::ops::Range<u32>| range.map(|index| params.stream_bytes(index).unwrap()).sum::<u64>();
    assert_eq!((sum(0..4), sum(4..8)), (1003, 1003));
    assert_eq!(params.stream_bytes(4), Some(251));
}

#[test]
fn limits_are_kept_and_named() {
    let refused = |params: Params| params.check().unwrap_err();
    assert_eq!(refused(Params { streams: 65, ..Params::default() }), "streams: 65 is not within 1 to 64");
    assert!(refused(Params { streams: 0, ..Params::default() }).starts_with("streams"));
    assert!(refused(Params { congestion: "cu/bic".into(), ..Params::default() }).contains("cu/bic"));
    assert!(refused(Params { amount: Amount::Bytes(0), ..Params::default() }).starts_with("bytes"));
    let udp = UdpParams { datagram_bytes: 1472, gso_segments: 45, gro: false, rate_bps: 0 };
    let params = Params { workload: Workload::Udp(udp), ..Params::default() };
    assert!(refused(params).starts_with("super-frame in bytes: 66240"));
    assert!(refused(Params { busy_poll_usecs: u32::MAX, ..Params::default() }).starts_with("busy polling"));
    assert_eq!(Params::default().check(), Ok(()));
}

#[test]
fn calls_and_receive_windows_have_limits_too() {
    let refused = |params: Params| params.check().unwrap_err();
    let rpc = |rpc| Params { workload: Workload::Rpc(rpc), ..Params::default() };
    assert_eq!(rpc(RpcParams::default()).check(), Ok(()));
    assert!(refused(rpc(RpcParams { outstanding: 0, ..RpcParams::default() })).starts_with("outstanding calls: 0"));
    assert!(refused(rpc(RpcParams { request_bytes: 7, ..RpcParams::default() })).starts_with("request in bytes"));
    assert!(refused(rpc(RpcParams { timer_usecs: 0, ..RpcParams::default() })).contains("retransmission timer"));
    let both_ways = Params { direction: Direction::Both, ..rpc(RpcParams::default()) };
    assert!(refused(both_ways).contains("leave the direction"));
    let narrow = Params { receive_window_bytes: 4096, ..Params::default() };
    assert_eq!(narrow.check(), Ok(()));
    assert!(refused(Params { receive_window_bytes: 100, ..Params::default() }).starts_with("receive window"));
    assert!(refused(Params { window_bytes: 1, ..narrow }).contains("drop the socket buffer size"));
    let bulk = BulkParams { cut_off: true, ..BulkParams::default() };
    let over_bytes = Params { workload: Workload::Bulk(bulk), amount: Amount::Bytes(1), ..Params::default() };
    assert!(refused(over_bytes).contains("drop the cut-off"));
}

#[test]
fn requests_have_limits_alone_and_beside_bulk_data() {
    let refused = |request_bytes, arrivals: &Arrivals, direction| {
        let requests = RequestParams { request_bytes, response_bytes: 64, arrivals: arrivals.clone() };
        let alone = Workload::Requests(requests.clone());
        let mixed = Workload::Mixed(MixedParams { bulk: BulkParams::default(), requests });
        [alone, mixed].map(|workload| Params { workload, direction, ..Params::default() }.check().err())
    };
    let even = Arrivals::Bursts { requests: 1, every_usecs: 1000 };
    assert_eq!(refused(64, &even, Direction::Send), [None, None]);
    let [alone, mixed] = refused(64, &even, Direction::Both);
    assert!(alone.is_some_and(|why| why.contains("always goes both ways")) && mixed.is_none());
    let numberless = "request in bytes: 7 is not within 8 to 65507";
    assert_eq!(refused(7, &even, Direction::Send), [(); 2].map(|()| Some(numberless.to_owned())));
    for endless in [
        Arrivals::Poisson { per_s: 0, seed: 0 },
        Arrivals::Poisson { per_s: 1_000_001, seed: 0 },
        Arrivals::Bursts { requests: 0, every_usecs: 1 },
        Arrivals::Bursts { requests: 1025, every_usecs: 1 },
        Arrivals::Bursts { requests: 1, every_usecs: 0 },
        Arrivals::Bursts { requests: 1, every_usecs: 60_000_001 },
    ] {
        assert!(refused(64, &endless, Direction::Send).iter().all(Option::is_some), "{endless:?}");
    }
}

#[test]
fn a_mixed_test_has_its_sockets_of_both_kinds() {
    let requests =
        RequestParams { request_bytes: 8, response_bytes: 8, arrivals: Arrivals::Poisson { per_s: 1, seed: 0 } };
    let sockets = |workload| {
        let params = Params { workload, streams: 3, direction: Direction::Both, ..Params::default() };
        (params.tcp_sockets(), params.udp_sockets())
    };
    assert_eq!(sockets(Workload::Mixed(MixedParams { bulk: BulkParams::default(), requests })), (6, 1));
    assert_eq!(sockets(Workload::Bulk(BulkParams::default())), (6, 0));
    let udp = UdpParams { datagram_bytes: 8, gso_segments: 1, gro: false, rate_bps: 0 };
    assert_eq!(sockets(Workload::Udp(udp)), (0, 6));
}

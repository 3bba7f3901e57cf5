//! The server, which serves one client at a time. While a client is connected, no other client can use the interface.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offramp_offload::frame::Frame;
use offramp_offload::meta::{ChecksumState, TxMeta};
use offramp_offload::segment::{SegmentPolicy, Segmenter};

use super::message::{self, ARRIVALS_MAX, Answer, FRAMES_LEN, Request, STOP_INTERVAL, VERSION, Welcome};
use crate::case::DESTINATION;
use crate::end::{End, LocalEnd, Outgoing, datagrams_of};
use crate::error::CheckError;
use crate::packet::{Identity, Ip, PORTS, Station, Way};
use crate::plan::{self, Side};

/// Maximum wait for a client's next request, and for a client to read an answer.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// Maximum duration of a client's session.
const SESSION_MAX: Duration = Duration::from_mins(15);
/// Minimum segment size that a client may request, in bytes.
const SEGMENT_LEN_MIN: u16 = 60;
/// Maximum ratio of the bytes sent on the interface to the bytes of the client's frame. The ratio exceeds 1 because
/// each segment repeats the headers. The cases of a check need a ratio of 2.9.
const OUT_PER_IN_MAX: usize = 3;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Serve {
    /// Name of the interface that clients use: `IF` or `NS/IF`.
    pub interface: String,
    /// Directory of the state files with the settings to restore.
    pub state_dir: PathBuf,
    /// True if clients may connect to a public address of this machine.
    pub allows_public: bool,
}

/// Serves clients until `stop` is set. `progress` receives lines about each client.
///
/// # Errors
/// Returns an error if connections cannot be accepted.
pub fn serve(
    listener: &TcpListener,
    config: &Serve,
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(&str) + Send),
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, client)) => {
                progress(&format!("{client}: connected"));
                match serve_one(stream, config, stop, progress) {
                    Ok(()) => progress(&format!("{client}: done; all settings restored")),
                    Err(error) => progress(&format!("{client}: {error}")),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(STOP_INTERVAL),
            // A fault of one client, such as a reset connection, must not end the server.
            Err(error) => progress(&format!("a connection failed: {error}")),
        }
    }
    Ok(())
}

fn serve_one(
    mut stream: TcpStream,
    config: &Serve,
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), CheckError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STOP_INTERVAL))?;
    stream.set_write_timeout(Some(STOP_INTERVAL))?;
    if is_public(stream.local_addr()?.ip()) && !config.allows_public {
        let reason = "this address is public; name it with --bind to accept clients there";
        message::write(&mut stream, &Answer::Refused(reason.to_owned()).encode(), IDLE_MAX, stop)?;
        return Err(CheckError::Client(reason.to_owned()));
    }
    let mut open = || -> Result<Box<dyn End>, CheckError> {
        Ok(Box::new(LocalEnd::open(&config.interface, &config.state_dir, progress)?))
    };
    converse(&mut stream, &mut open, stop)
}

/// Serves one client. `open` opens the interface for the client. Every setting is restored when the function returns.
/// `stop` is checked when a blocked read or write of `stream` fails with [`io::ErrorKind::WouldBlock`], so `stream`
/// needs read and write timeouts of 200 ms.
///
/// # Errors
/// Returns an error if the client sends an invalid or forbidden request, if the interface fails, or if the session
/// takes too long.
pub fn converse(
    stream: &mut (impl Read + Write),
    open: &mut dyn FnMut() -> Result<Box<dyn End>, CheckError>,
    stop: &AtomicBool,
) -> Result<(), CheckError> {
    let begun = Instant::now();
    let mut end = None;
    loop {
        let patience = IDLE_MAX.min(SESSION_MAX.saturating_sub(begun.elapsed()));
        if patience.is_zero() {
            return Err(CheckError::Client("the check exceeded its time limit".to_owned()));
        }
        let Some(request) = message::read(stream, patience, stop)? else { return Ok(()) };
        let answer = Request::decode(&request)
            .map_err(|error| CheckError::Client(format!("the client sent {error}")))
            .and_then(|request| answer(&mut end, request, open));
        let reply = answer.as_ref().map_or_else(|error| Answer::Refused(error.to_string()).encode(), Answer::encode);
        message::write(stream, &reply, IDLE_MAX, stop)?;
        answer?;
    }
}

fn answer(
    end: &mut Option<Box<dyn End>>,
    request: Request,
    open: &mut dyn FnMut() -> Result<Box<dyn End>, CheckError>,
) -> Result<Answer, CheckError> {
    match request {
        Request::Hello { version: VERSION } => {
            // The assignment drops an interface that is already open. The drop restores the settings, as required
            // before the interface is opened again.
            *end = None;
            Ok(Answer::Welcome(welcome(end.insert(open()?).as_ref())))
        }
        Request::Hello { version } => Err(CheckError::Client(format!(
            "the peer speaks version {version} of the protocol, this offramp {VERSION}; use the same at both ends"
        ))),
        request => {
            let end = end.as_mut().ok_or_else(|| CheckError::Client("the client sent no greeting".to_owned()))?;
            answer_of(end.as_mut(), request)
        }
    }
}

fn welcome(end: &dyn End) -> Welcome {
    let about = end.description();
    let features = [Side::Transmit, Side::Receive].into_iter().flat_map(plan::features_of);
    Welcome {
        interface: about.interface.clone(),
        driver: about.driver.clone(),
        mtu: about.mtu,
        mac: about.mac,
        offered: features.map(|feature| (feature.to_owned(), end.offered(feature))).collect(),
        has_steering: true,
    }
}

fn answer_of(end: &mut dyn End, request: Request) -> Result<Answer, CheckError> {
    match request {
        Request::Hello { .. } => Err(CheckError::Client("the client greeted twice".to_owned())),
        Request::Apply(features) => {
            end.apply(&features)?;
            let names = [Side::Transmit, Side::Receive].into_iter().flat_map(plan::features_of);
            Ok(Answer::Applied(names.filter(|name| end.is_on(name)).map(str::to_owned).collect()))
        }
        Request::Send(frame) => {
            check_frame(&frame, end.description().mac)?;
            Ok(Answer::Sent(end.send(&frame)?.err().unwrap_or(0)))
        }
        Request::Receive(wait) => {
            let (mut frames, mut bytes, mut wait) = (Vec::new(), 0, wait);
            while bytes < FRAMES_LEN
                && let Some(frame) = end.receive(wait)?
            {
                // Count the bytes of all captured frames, not only of a check's frames. Otherwise, endless other
                // traffic would keep this loop running.
                bytes += frame.bytes.len();
                if is_of_a_check(&frame.bytes) {
                    frames.push(frame);
                }
                wait = Duration::ZERO;
            }
            Ok(Answer::Frames(frames))
        }
        Request::Steering => end.steering().map(Answer::Steering),
        Request::Arrivals(mut wait) => {
            let mut arrivals = Vec::new();
            for _ in 0..ARRIVALS_MAX {
                let Some(arrival) = end.arrival(wait)? else { break };
                if is_of_a_check(&arrival.head) {
                    arrivals.push(arrival);
                }
                wait = Duration::ZERO;
            }
            Ok(Answer::Arrivals(arrivals))
        }
        Request::CheckLink => end.check_link().map(|()| Answer::Done(Vec::new())),
        Request::Finish => end.finish().map(Answer::Done),
    }
}

/// Returns whether a frame belongs to a check: it has a check's IP addresses, and its Ethernet destination is the
/// unused address [`DESTINATION`] or a check's multicast group.
fn is_of_a_check(frame: &[u8]) -> bool {
    let is_for = |to: [u8; 6]| frame.starts_with(&to);
    match Identity::and_station(frame) {
        Some((_, Station::Nobody)) => is_for(DESTINATION),
        Some((identity, Station::Group)) => is_for(identity.group(Ip::V4)) || is_for(identity.group(Ip::V6)),
        None => false,
    }
}

/// Refuses a frame that does not belong to a check, because the server must not send arbitrary frames for a client.
fn check_frame(frame: &Outgoing, own: [u8; 6]) -> Result<(), CheckError> {
    let is_small = frame.meta.segmentation.is_some_and(|segmentation| segmentation.size < SEGMENT_LEN_MIN);
    let station = Identity::and_station(&frame.bytes).map(|(_, station)| station);
    let is_handed_over_right = match frame.way {
        Way::PacketSocket | Way::TagInSkb => station == Some(Station::Nobody),
        // The multicast group may have members, so only datagrams to the discard port are allowed.
        Way::UdpSocket => station == Some(Station::Group) && is_to_discard(&frame.bytes),
    };
    let reason = match () {
        () if !is_of_a_check(&frame.bytes) || !is_handed_over_right => "a frame not made by a check",
        () if frame.bytes[6..12] != own => "a frame with a source other than the interface's address",
        () if is_small => "a request for too small segments",
        () if !is_as_long_as_it_may_be(frame) => "a request that would send a multiple of the received bytes",
        () => return Ok(()),
    };
    Err(CheckError::Client(format!("the client sent {reason}")))
}

/// Returns whether the frame can be segmented, and its segments together have at most [`OUT_PER_IN_MAX`] times the
/// bytes of the frame. A frame without a segmentation request passes.
fn is_as_long_as_it_may_be(frame: &Outgoing) -> bool {
    let Some(segmentation) = frame.meta.segmentation else { return true };
    let checksum = match frame.meta.checksum {
        ChecksumState::Partial(partial) => Some(partial),
        _ => None,
    };
    let mut bytes = frame.bytes.clone();
    let request = Frame::new(&mut bytes, TxMeta { checksum, segmentation: Some(segmentation) });
    let Ok(layout) = request.layout() else { return false };
    let headers_len = layout.payload_start;
    Segmenter::new(&request, &SegmentPolicy::default()).is_ok_and(|segmenter| {
        frame.bytes.len() + (segmenter.frames_left() - 1) * headers_len <= OUT_PER_IN_MAX * frame.bytes.len()
    })
}

fn is_to_discard(frame: &[u8]) -> bool {
    datagrams_of(frame).is_some_and(|(_, to, _)| to.port() == PORTS[1])
}

/// Returns whether an address is public: neither loopback, private (RFC 1918, RFC 4193), link-local, shared (RFC 6598)
/// nor for benchmarks (RFC 2544).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let is_shared = a == 100 && b & 0xc0 == 64 || a == 198 && b & 0xfe == 18;
            !(v4.is_loopback() || v4.is_private() || v4.is_link_local() || is_shared)
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_public(IpAddr::V4(v4)),
            None => !(v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Addressing, Case, Load, TcpOptions};
    use crate::exchange::outgoing;
    use crate::packet::Protocol;
    use crate::plan::{Cases, Depth, datagram, probe};
    use offramp_offload::meta::{RxMeta, Segmentation, SegmentationKind};

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn frame() -> Outgoing {
        let addressing = Addressing { destination: DESTINATION, source: OWN, seed: 0 };
        let built = probe(Ip::V4).build(&addressing, Identity { run: 1, case: 2 });
        Outgoing { way: Way::PacketSocket, bytes: built.sent[0].bytes.clone(), meta: RxMeta::default() }
    }

    #[test]
    fn a_server_sends_frames_of_a_check_and_no_others() {
        assert!(check_frame(&frame(), OWN).is_ok());
        let changed = |change: fn(&mut Outgoing)| {
            let mut frame = frame();
            change(&mut frame);
            check_frame(&frame, OWN).unwrap_err().to_string()
        };
        assert!(changed(|frame| frame.bytes[0] = 0xff).contains("not made by a check"));
        assert!(changed(|frame| frame.bytes[30] = 8).contains("not made by a check"), "another destination");
        assert!(changed(|frame| frame.bytes.clear()).contains("not made by a check"));
        assert!(changed(|frame| frame.bytes[11] = 8).contains("a source other"));
        let small = |frame: &mut Outgoing| {
            frame.meta.segmentation = Some(Segmentation::new(SegmentationKind::Tcp4, 1));
        };
        assert!(changed(small).contains("too small segments"));
        assert!(changed(|frame| frame.way = Way::UdpSocket).contains("not made by a check"), "to nobody");
    }

    #[test]
    fn a_server_sends_every_case_of_a_check_and_no_multiple_of_what_it_is_sent() {
        let addressing = Addressing { destination: DESTINATION, source: OWN, seed: 0 };
        let sent = |case: &Case| {
            let way = case.way;
            let built = case.build(&addressing, Identity { run: 1, case: 2 });
            built.sent.into_iter().map(move |sent| outgoing(&sent, way)).collect::<Vec<_>>()
        };
        let is_small = |case: &Case| matches!(case.load, Load::Super { size: ..100, .. });
        let mut longest = plan::cases(Cases::Segmentation(Ip::V6, Protocol::Tcp), 1500, Depth::Full);
        longest.retain(is_small);
        assert!(longest.len() > 100);
        let sockets = [Ip::V4, Ip::V6].into_iter().flat_map(|ip| plan::cases(Cases::Socket(ip), 1500, Depth::Quick));
        for case in plan::path(1500, Depth::Quick).into_iter().chain(longest).chain(sockets) {
            let refused = sent(&case).iter().find_map(|frame| check_frame(frame, OWN).err());
            assert!(refused.is_none(), "{case}: {refused:?}");
        }
        let load = Load::Super { size: 61, segments: 64, last: 61 };
        let tcp = Case { tcp_options: TcpOptions::Full, ..Case::new(Ip::V6, Protocol::Tcp, load) };
        let long = sent(&Case { ip_options: 10, ..tcp }).remove(0);
        assert!(check_frame(&long, OWN).unwrap_err().to_string().contains("a multiple"));
        let mut frame = sent(&tcp).remove(0);
        frame.meta.segmentation = Some(Segmentation::new(SegmentationKind::Udp, 61));
        assert!(check_frame(&frame, OWN).unwrap_err().to_string().contains("a multiple"), "not to be segmented");
    }

    #[test]
    fn a_server_sends_datagrams_to_a_group_by_a_socket_and_to_discard_alone() {
        let addressing = Addressing { destination: DESTINATION, source: OWN, seed: 0 };
        for ip in [Ip::V4, Ip::V6] {
            let built = datagram(ip).build(&addressing, Identity { run: 1, case: 2 });
            let right = Outgoing { way: Way::UdpSocket, bytes: built.sent[0].bytes.clone(), meta: RxMeta::default() };
            assert!(check_frame(&right, OWN).is_ok());
            assert!(check_frame(&Outgoing { way: Way::PacketSocket, ..right.clone() }, OWN).is_err());
            let port = if ip == Ip::V4 { 14 + 20 + 3 } else { 14 + 40 + 3 };
            for at in [0, 5, 11, port] {
                let mut other = right.clone();
                other.bytes[at] ^= 1;
                assert!(check_frame(&other, OWN).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn an_address_is_public_unless_it_is_of_a_range_that_is_not() {
        let is_public = |text: &str| is_public(text.parse().unwrap());
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.1.1",
            "198.18.0.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "fe80::1",
        ] {
            assert!(!is_public(private), "{private}");
        }
        for public in ["8.8.8.8", "198.20.0.1", "2001:4860::1", "::ffff:9.9.9.9"] {
            assert!(is_public(public), "{public}");
        }
    }
}

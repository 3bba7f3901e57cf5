//! The frame that announces a guest's location to switches, for a guest that cannot announce itself.

/// Length of the frame, in bytes: the minimum of Ethernet without FCS (IEEE 802.3 4.2.3.3). The packet has 28 bytes,
/// followed by padding.
pub(super) const FRAME_LEN: usize = 60;
/// The bytes between the addresses of the Ethernet header and the sender's address (RFC 903). The bytes are EtherType
/// RARP, hardware type Ethernet (1), protocol type IPv4, address lengths 6 and 4, and operation 3 (reverse request).
const HEAD: [u8; 10] = [0x80, 0x35, 0, 1, 0x08, 0x00, 6, 4, 0, 3];
const BROADCAST: [u8; 6] = [0xff; 6];
/// The bit of a group address in the first octet (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;

/// Returns whether a station can have this address.
pub(super) fn is_station(mac: [u8; 6]) -> bool {
    mac[0] & GROUP_BIT == 0 && mac != [0; 6]
}

/// Returns a broadcast from `mac` that asks for the station's own IP address. No answer is expected: switches only
/// learn the sender's location (vhost-user, `SEND_RARP`).
pub(super) fn frame(mac: [u8; 6]) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    // The IP addresses of the sender and the target stay 0.0.0.0.
    for (start, bytes) in [(0, &BROADCAST[..]), (6, &mac), (12, &HEAD), (22, &mac), (32, &mac)] {
        frame[start..start + bytes.len()].copy_from_slice(bytes);
    }
    frame
}

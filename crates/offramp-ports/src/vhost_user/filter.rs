//! The receive filter of a guest: modes, addresses and VLANs, set by its control queue (virtio 1.3, 5.1.6.5.1 to .3).
//!
//! A filter only removes frames. Even a promiscuous guest does not receive frames that the port's own rules withhold.

use offramp_virtio::control::{MacAddress, ReceiveModes};
use std::hash::{BuildHasher, RandomState};

/// Length of an Ethernet header, in bytes.
const HEADER_LEN: usize = 14;
/// Offset of the EtherType, and the EtherType of an 802.1Q tag.
const TYPE_AT: usize = 12;
const TAG: [u8; 2] = [0x81, 0x00];
/// The bits of the VLAN id in a tag (IEEE 802.1Q 9.6), and the number of VLAN ids.
const VID_MASK: u16 = 0x0fff;
const VIDS: usize = 4096;
const BROADCAST: MacAddress = [0xff; 6];
/// The bit of a group address in the first octet (IEEE 802 8.2).
const GROUP_BIT: u8 = 1;

/// The set of VLANs whose tagged frames the guest receives.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct VlanTable(Box<[u64; VIDS / 64]>);

impl Default for VlanTable {
    fn default() -> Self {
        Self(Box::new([0; VIDS / 64]))
    }
}

impl std::fmt::Debug for VlanTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.vids()).finish()
    }
}

impl VlanTable {
    /// Adds a VLAN to the table or removes the VLAN. Returns `None` if `vid` is out of range.
    pub(super) fn set(&mut self, vid: u16, passes: bool) -> Option<()> {
        let word = self.0.get_mut(usize::from(vid / 64))?;
        let bit = 1 << (vid % 64);
        *word = if passes { *word | bit } else { *word & !bit };
        Some(())
    }

    #[inline]
    fn has(&self, vid: u16) -> bool {
        self.0[usize::from(vid / 64)] >> (vid % 64) & 1 != 0
    }

    /// Returns the ids of the VLANs in the table.
    pub(super) fn vids(&self) -> impl Iterator<Item = u16> {
        (0..VIDS as u16).filter(|vid| self.has(*vid))
    }
}

/// A set of addresses, as a hash table with linear probing. The hash is secret, so a guest cannot choose addresses that
/// make searches long.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AddressTable {
    /// Addresses as numbers, or [`EMPTY`]. The number of slots is a power of two, and at most half of the slots hold
    /// addresses.
    slots: Box<[u64]>,
    len: usize,
    /// The secret of the hash, or 0 before the first address was set.
    secret: u64,
}

/// The value of an empty slot, and the bit that is set in the number of every address.
const EMPTY: u64 = 0;
const IS_ADDRESS: u64 = 1 << 63;

impl Default for AddressTable {
    fn default() -> Self {
        Self { slots: Box::new([EMPTY]), len: 0, secret: 0 }
    }
}

impl AddressTable {
    /// Returns a table with new addresses and the same secret. The table does not depend on the order of the addresses.
    fn with(&self, mut numbers: Vec<u64>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        let len = numbers.len();
        let secret = if self.secret == 0 { RandomState::new().hash_one(0) | 1 } else { self.secret };
        let mut table = Self { slots: vec![EMPTY; (2 * len).next_power_of_two()].into(), len, secret };
        for number in numbers {
            if let Err(free) = table.find(number) {
                table.slots[free] = number;
            }
        }
        table
    }

    /// Returns the slot of an address. If the table lacks the address, returns the free slot for the address as `Err`.
    #[inline]
    fn find(&self, number: u64) -> Result<usize, usize> {
        let last = self.slots.len() - 1;
        let product = u128::from(number ^ self.secret) * u128::from(self.secret);
        let mut at = product as usize ^ (product >> u64::BITS) as usize;
        loop {
            // The loop ends because at least half of the slots are empty.
            at &= last;
            match self.slots[at] {
                EMPTY => return Err(at),
                known if known == number => return Ok(at),
                _ => at += 1,
            }
        }
    }
}

/// The receive filter of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// The guest's receive modes. If `None`, the guest has set neither modes nor addresses, and receives frames for all
    /// addresses. A driver can negotiate `CTRL_RX` without ever using the feature.
    pub modes: Option<ReceiveModes>,
    /// The guest's own address. If `None`, unicast frames are not filtered.
    pub own: Option<MacAddress>,
    /// The unicast addresses and the group addresses that the guest receives in addition to `own`. A group address in
    /// the unicast list, or a unicast address in the multicast list, is ignored.
    addresses: [AddressTable; 2],
    /// The VLANs whose tagged frames the guest receives. If `None`, the guest receives all tagged frames.
    pub vlans: Option<VlanTable>,
}

impl Filter {
    /// Returns a filter that accepts every address.
    pub(super) fn new(own: Option<MacAddress>, vlans: Option<VlanTable>) -> Self {
        Self { own, vlans, ..Self::default() }
    }

    /// Replaces both tables of addresses.
    pub(super) fn set_addresses(&mut self, unicast: &[MacAddress], multicast: &[MacAddress]) {
        let of = |nth: usize, macs: &[MacAddress]| {
            let is_right = |mac: &&MacAddress| is_group(mac) == (nth == 1);
            self.addresses[nth].with(macs.iter().filter(is_right).map(number).collect())
        };
        self.addresses = [of(0, unicast), of(1, multicast)];
    }

    /// Returns the number of unicast addresses, and the number of group addresses, in addition to `own`.
    pub(super) fn address_counts(&self) -> [usize; 2] {
        self.addresses.each_ref().map(|table| table.len)
    }

    #[cfg(test)]
    pub(super) fn forget_addresses(&mut self) {
        self.addresses = Default::default();
    }

    /// Returns the unicast addresses, and the group addresses, in addition to `own`.
    pub(super) fn addresses(&self) -> [Vec<MacAddress>; 2] {
        let mac = |slot: &u64| [0, 1, 2, 3, 4, 5].map(|octet| slot.to_le_bytes()[octet]);
        self.addresses.each_ref().map(|table| table.slots.iter().filter(|slot| **slot != EMPTY).map(mac).collect())
    }

    /// Returns whether the filter accepts every frame.
    pub(super) fn is_open(&self) -> bool {
        self.modes.is_some_and(|modes| modes.contains(ReceiveModes::PROMISC))
            || (self.modes.is_none() && self.vlans.is_none())
    }

    /// Returns whether the filter accepts a frame. The filter of a promiscuous guest accepts all frames.
    #[inline]
    pub(super) fn accepts(&self, frame: &[u8]) -> bool {
        let Some(header) = frame.first_chunk::<HEADER_LEN>() else { return true };
        let modes = self.modes.unwrap_or_default();
        if modes.contains(ReceiveModes::PROMISC) {
            return true;
        }
        if header[TYPE_AT..] == TAG && !self.accepts_tag(&frame[HEADER_LEN..]) {
            return false;
        }
        let [destination @ .., _, _, _, _, _, _, _, _] = header;
        self.modes.is_none()
            || if is_group(destination) {
                self.accepts_group(modes, destination)
            } else {
                self.accepts_unicast(modes, destination)
            }
    }

    /// Returns whether a frame with this tag passes. `tag` holds the bytes after the EtherType; a frame that is too
    /// short for a VLAN id passes.
    #[inline]
    fn accepts_tag(&self, tag: &[u8]) -> bool {
        let (Some(vlans), Some(&[high, low])) = (&self.vlans, tag.first_chunk()) else { return true };
        vlans.has(u16::from_be_bytes([high, low]) & VID_MASK)
    }

    /// Returns whether a unicast frame passes. The refusing mode `NOUNI` overrides the admitting modes.
    #[inline]
    fn accepts_unicast(&self, modes: ReceiveModes, destination: &MacAddress) -> bool {
        let address = number(destination);
        !modes.contains(ReceiveModes::NOUNI)
            && (self.own.is_none_or(|own| number(&own) == address)
                || modes.contains(ReceiveModes::ALLUNI)
                || self.addresses[0].find(address).is_ok())
    }

    #[inline]
    fn accepts_group(&self, modes: ReceiveModes, destination: &MacAddress) -> bool {
        if *destination == BROADCAST {
            return !modes.contains(ReceiveModes::NOBCAST);
        }
        !modes.contains(ReceiveModes::NOMULTI)
            && (modes.contains(ReceiveModes::ALLMULTI) || self.addresses[1].find(number(destination)).is_ok())
    }
}

/// Returns the address as a number, for fast comparison.
#[inline]
fn number(mac: &MacAddress) -> u64 {
    let low = u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]);
    u64::from(low) | u64::from(u16::from_le_bytes([mac[4], mac[5]])) << 32 | IS_ADDRESS
}

fn is_group(mac: &MacAddress) -> bool {
    mac[0] & GROUP_BIT != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A second implementation of the filter, which follows the specification sentence by sentence.
    fn oracle(filter: &Filter, tables: &[Vec<MacAddress>; 2], frame: &[u8]) -> bool {
        let on = |mode| filter.modes.is_some_and(|modes| modes.contains(mode));
        let destination: MacAddress = frame[..6].try_into().unwrap();
        if on(ReceiveModes::PROMISC) {
            return true;
        }
        if frame[12..14] == [0x81, 0] {
            let vid = usize::from(frame[14] & 15) << 8 | usize::from(frame[15]);
            if filter.vlans.as_ref().is_some_and(|vlans| !vlans.vids().any(|known| usize::from(known) == vid)) {
                return false;
            }
        }
        if filter.modes.is_none() {
            return true;
        }
        if destination == [0xff; 6] {
            return !on(ReceiveModes::NOBCAST);
        }
        if destination[0] % 2 == 1 {
            return !on(ReceiveModes::NOMULTI) && (on(ReceiveModes::ALLMULTI) || tables[1].contains(&destination));
        }
        let is_own = filter.own.is_none() || filter.own == Some(destination);
        !on(ReceiveModes::NOUNI) && (on(ReceiveModes::ALLUNI) || is_own || tables[0].contains(&destination))
    }

    /// Draws from few addresses, so that frames and filters often have the same address.
    fn mac() -> impl Strategy<Value = MacAddress> {
        prop_oneof![
            (0u8..4, 0u8..6).prop_map(|(first, last)| [first, 0, 0, 0, 0, last]),
            Just(BROADCAST),
            any::<MacAddress>(),
        ]
    }

    proptest! {
        #[test]
        fn a_frame_passes_as_the_specification_says(
            modes in proptest::option::of((0..=ReceiveModes::all().bits()).prop_map(ReceiveModes::from_bits_truncate)),
            own in proptest::option::of(mac()),
            unicast in prop::collection::vec(mac(), 0..12),
            multicast in prop::collection::vec(mac(), 0..12),
            vlans in proptest::option::of(prop::collection::vec((0u16..12, any::<bool>()), 0..12)),
            destination in mac(),
            tag in proptest::option::of((0u16..12, 0u16..16)),
        ) {
            let mut filter = Filter { modes, own, ..Filter::default() };
            filter.set_addresses(&unicast, &multicast);
            filter.vlans = vlans.map(|changes| {
                let mut table = VlanTable::default();
                for (vid, passes) in changes {
                    table.set(vid, passes).unwrap();
                }
                table
            });
            let tag = tag.map_or(vec![], |(vid, priority)| [&TAG[..], &(priority << 12 | vid).to_be_bytes()].concat());
            let frame = [&destination[..], &[2, 0, 0, 0, 0, 9], &tag, &[0x08, 0x00], &[0; 40]].concat();
            prop_assert_eq!(filter.accepts(&frame), oracle(&filter, &[unicast, multicast], &frame));
            if filter.is_open() {
                prop_assert!(filter.accepts(&frame));
            }
        }
    }

    #[test]
    fn a_table_of_many_addresses_has_each_of_them_and_no_other() {
        let macs: Vec<MacAddress> = (0..9000u32).map(|n| [2, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8, 1]).collect();
        let mut filter = Filter { modes: Some(ReceiveModes::empty()), own: Some([2; 6]), ..Filter::default() };
        filter.set_addresses(&macs, &[]);
        assert_eq!(filter.address_counts(), [9000, 0]);
        let accepts = |mac: &MacAddress| filter.accepts(&[&mac[..], &[0; 54]].concat());
        assert!(macs.iter().all(accepts));
        assert!(!macs.iter().any(|mac| accepts(&[2, 0, mac[2], mac[3], mac[4], 2])) && !accepts(&[0; 6]));
        let mut again = filter.clone();
        again.set_addresses(&macs.iter().rev().copied().collect::<Vec<_>>(), &[]);
        assert!(again == filter, "the order counts");
        again.set_addresses(&[], &[]);
        assert!(again.address_counts() == [0, 0] && !again.accepts(&[&macs[0][..], &[0; 54]].concat()));
    }

    #[test]
    fn there_is_no_vlan_past_the_last() {
        let mut table = VlanTable::default();
        assert_eq!((table.set(4095, true), table.set(4096, true)), (Some(()), None));
        assert_eq!(table.vids().collect::<Vec<_>>(), [4095]);
        assert_eq!((table.set(4095, false), table.vids().count()), (Some(()), 0));
    }
}

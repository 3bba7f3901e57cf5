//! A slow model of the settings made through a control queue. The model stores the bytes of all accepted commands, and
//! derives its answers from these bytes. The modelled port has [`PAIRS_MAX`] queue pairs, the address [`OWN`] and the
//! allowed addresses [`OWN`] and [`OTHER`].

pub const PAIRS_MAX: u16 = 3;
pub const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Feature bits, numbered as in the specification.
pub const CTRL_GUEST_OFFLOADS: u32 = 2;
pub const CTRL_RX: u32 = 18;
pub const CTRL_VLAN: u32 = 19;
pub const CTRL_RX_EXTRA: u32 = 20;
pub const GUEST_ANNOUNCE: u32 = 21;
pub const MQ: u32 = 22;
pub const CTRL_MAC_ADDR: u32 = 23;
pub const DEVICE_STATS: u32 = 50;
pub const VQ_NOTF_COAL: u32 = 52;
pub const NOTF_COAL: u32 = 53;
pub const HASH_REPORT: u32 = 57;
pub const RSS: u32 = 60;
pub const OF_COMMANDS: [u32; 12] = [
    CTRL_GUEST_OFFLOADS,
    CTRL_RX,
    CTRL_VLAN,
    CTRL_RX_EXTRA,
    GUEST_ANNOUNCE,
    MQ,
    CTRL_MAC_ADDR,
    DEVICE_STATS,
    VQ_NOTF_COAL,
    NOTF_COAL,
    HASH_REPORT,
    RSS,
];
/// Bits of the receive offloads: `GUEST_CSUM`, `_TSO4`, `_TSO6`, `_ECN`, `_USO4` and `_USO6`.
pub const OFFLOADS: [u32; 6] = [1, 7, 8, 9, 54, 55];

#[derive(Default)]
pub struct Model {
    pub negotiated: u64,
    pub accepted: Vec<Vec<u8>>,
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

impl Model {
    pub fn has(&self, bit: u32) -> bool {
        self.negotiated >> bit & 1 == 1
    }

    /// Returns the index of the control queue (virtio 1.3, 5.1.2).
    pub fn control_vring(&self) -> u16 {
        if self.has(MQ) || self.has(RSS) { 2 * PAIRS_MAX } else { 2 }
    }

    pub fn offloads(&self) -> u64 {
        let negotiated = OFFLOADS.iter().filter(|bit| self.has(**bit)).fold(0, |bits, bit| bits | 1 << bit);
        let last = self.accepted.iter().rev().find(|command| command[..2] == [5, 0]);
        last.map_or(negotiated, |command| u64::from(u32_at(command, 2)) | u64::from(u32_at(command, 6)) << 32)
    }

    /// Returns the number of queue pairs set by a command, or `None` if the command does not set the number.
    fn pairs_of(command: &[u8]) -> Option<u16> {
        match command[..2] {
            [4, 0] => Some(u16_at(command, 2)),
            [4, 1] => Self::rss_pairs(command),
            _ => None,
        }
    }

    pub fn pairs(&self) -> u16 {
        self.accepted.iter().rev().find_map(|command| Self::pairs_of(command)).unwrap_or(1)
    }

    /// Returns the pair for unhashed frames, if the guest steers its flows.
    pub fn unclassified(&self) -> Option<u16> {
        let last = self.accepted.iter().rev().find(|command| command[0] == 4)?;
        (last[1] == 1).then(|| u16_at(last, 8))
    }

    /// Returns the number of bytes after `ack` in the answer to an accepted command.
    #[allow(dead_code, reason = "of the fuzz target and its test")]
    pub fn fields_len(command: &[u8]) -> usize {
        if matches!(command[..2], [6, 3] | [8, 0]) { 8 } else { 0 }
    }

    /// Returns the number of queue pairs in an RSS configuration, or `None` if the configuration is invalid.
    fn rss_pairs(command: &[u8]) -> Option<u16> {
        if command.len() < 10 {
            return None;
        }
        let entries = usize::from(u16_at(command, 6)) + 1;
        let end = 10 + 2 * entries;
        if ![1, 2, 4, 8, 16, 32, 64, 128].contains(&entries) || command.len() < end + 3 {
            return None;
        }
        let key_len = usize::from(command[end + 2]);
        let (types, transmits) = (u32_at(command, 2), u16_at(command, end));
        let last = (8..end).step_by(2).map(|at| u16_at(command, at)).max()?;
        let makes_sense = types < 64 && last < PAIRS_MAX && (1..=PAIRS_MAX).contains(&transmits) && key_len <= 40;
        (makes_sense && command.len() >= end + 3 + key_len).then(|| transmits.max(last + 1))
    }

    /// Returns the coalescing settings of a ring, in frames and microseconds.
    pub fn wish(&self, ring: u16) -> Option<(u32, u32)> {
        let (mut of_ring, mut of_all) = (None, None);
        for command in &self.accepted {
            match command[..2] {
                [6, direction] if direction < 2 && u16::from(direction) != ring % 2 => {
                    of_all = Some((u32_at(command, 2), u32_at(command, 6)));
                    of_ring = of_all;
                }
                [6, 2] if u16_at(command, 2) == ring => of_ring = Some((u32_at(command, 6), u32_at(command, 10))),
                _ if Self::pairs_of(command).is_some_and(|pairs| ring / 2 >= pairs) => of_ring = of_all,
                _ => {}
            }
        }
        of_ring
    }

    fn tables(command: &[u8]) -> Option<[Vec<&[u8]>; 2]> {
        let mut at = 2;
        let mut tables = [Vec::new(), Vec::new()];
        for table in &mut tables {
            if at + 4 > command.len() {
                return None;
            }
            let count = u32_at(command, at) as usize;
            at += 4;
            if count > command.len() || at + 6 * count > command.len() {
                return None;
            }
            *table = command[at..at + 6 * count].chunks(6).collect();
            at += 6 * count;
        }
        Some(tables)
    }

    pub fn accepts(&self, command: &[u8]) -> bool {
        let len = command.len();
        if len < 2 {
            return false;
        }
        match command[..2] {
            [0, 0 | 1] => self.has(CTRL_RX) && len > 2,
            [0, 2..=5] => self.has(CTRL_RX_EXTRA) && len > 2,
            [1, 0] => self.has(CTRL_RX) && Self::tables(command).is_some(),
            [1, 1] => self.has(CTRL_MAC_ADDR) && len >= 8 && [OWN, OTHER].iter().any(|mac| command[2..8] == *mac),
            [2, 0 | 1] => self.has(CTRL_VLAN) && len >= 4 && u16_at(command, 2) < 4096,
            [4, 0] => self.has(MQ) && len >= 4 && (1..=PAIRS_MAX).contains(&u16_at(command, 2)),
            [4, 1] => self.has(RSS) && Self::rss_pairs(command).is_some(),
            [4, 2] => {
                let has_key = || len > 14 && command[14] <= 40 && len >= 15 + usize::from(command[14]);
                self.has(HASH_REPORT) && has_key() && u32_at(command, 2) < 64
            }
            [5, 0] => {
                let may_be = OFFLOADS.iter().filter(|bit| self.has(**bit)).fold(0u64, |bits, bit| bits | 1 << bit);
                let bits = || u64::from(u32_at(command, 2)) | u64::from(u32_at(command, 6)) << 32;
                self.has(CTRL_GUEST_OFFLOADS) && len >= 10 && bits() & !may_be == 0
            }
            [6, 0 | 1] => self.has(NOTF_COAL) && len >= 10,
            [6, 2] => self.has(VQ_NOTF_COAL) && len >= 14 && u16_at(command, 2) < 2 * self.pairs(),
            [6, 3] => self.has(VQ_NOTF_COAL) && len >= 4 && u16_at(command, 2) < 2 * self.pairs(),
            [8, 0] => self.has(DEVICE_STATS),
            [8, 1] => {
                let control = self.control_vring();
                self.has(DEVICE_STATS)
                    && command[2..].chunks_exact(16).all(|of| {
                        let (vring, low, high) = (u16_at(of, 0), u32_at(of, 8), u32_at(of, 12));
                        match vring {
                            _ if vring == control => low == 0 && high & !1 == 0,
                            _ if vring > control || high != 0 => false,
                            _ if vring % 2 == 1 => low & !0x9_0000 == 0,
                            _ => {
                                let checksum = if self.has(1) { 2 } else { 0 };
                                // Receive coalescing needs the receive checksum offload.
                                let gso = if self.has(1) && (self.has(7) || self.has(8)) { 4 } else { 0 };
                                low & !(1 | 8 | checksum | gso) == 0
                            }
                        }
                    })
            }
            _ => false,
        }
    }

    pub fn receives(&self, frame: &[u8]) -> bool {
        let last = |number: [u8; 2]| self.accepted.iter().rev().find(|command| command[..2] == number);
        let on = |mode| last([0, mode]).is_some_and(|command| command[2] != 0);
        if on(0) {
            return true;
        }
        if self.has(CTRL_VLAN) && frame[12..14] == [0x81, 0] {
            let vid = u16::from_be_bytes([frame[14] & 15, frame[15]]);
            let change = self.accepted.iter().rev().find(|command| command[0] == 2 && u16_at(command, 2) == vid);
            if change.is_none_or(|command| command[1] == 1) {
                return false;
            }
        }
        if !self.accepted.iter().any(|command| command[0] == 0 || command[..2] == [1, 0]) {
            return true;
        }
        let table = last([1, 0]).and_then(|command| Self::tables(command));
        let has = |nth: usize| table.as_ref().is_some_and(|tables| tables[nth].contains(&&frame[..6]));
        let own = last([1, 1]).map_or(&OWN[..], |command| &command[2..8]);
        match frame[0] & 1 {
            0 => !on(4) && (on(2) || frame[..6] == *own || has(0)),
            _ if frame[..6] == [0xff; 6] => !on(5),
            _ => !on(3) && (on(1) || has(1)),
        }
    }
}

//! The blocks of a pcapng stream, in this machine's byte order, as the daemon sends them.

use std::io::{self, ErrorKind, Read};

/// Initial size of the buffer, in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// Maximum length of a block, in bytes: a packet with its options.
const BLOCK_LEN_MAX: usize = 1 << 20;
/// Length of the fields around a block's body, in bytes: the type, and the block's length before and after the body.
const FRAME_LEN: usize = 12;
/// Block types.
pub const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Offset of the packet data in an enhanced packet block, in bytes.
const PACKET_DATA: usize = 28;
/// The options `epb_dropcount`, `isb_osdrop` and `isb_usrdeliv`.
const EPB_DROPCOUNT: u16 = 4;
const ISB_OSDROP: u16 = 7;
const ISB_USRDELIV: u16 = 8;

/// A block of the stream.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// All bytes of the block.
    pub bytes: &'a [u8],
}

/// The next part of the stream.
#[derive(Debug)]
pub enum Next<'a> {
    /// A whole block.
    Block(Block<'a>),
    /// No whole block is buffered. The next call waits for more bytes.
    Drained,
    /// The stream has ended.
    End,
}

/// Reads the blocks of a stream.
#[derive(Debug)]
pub struct Blocks<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    is_drained: bool,
}

impl<R: Read> Blocks<R> {
    /// Creates a reader of a stream from its start.
    pub fn new(from: R) -> Self {
        Self { from, buffer: vec![0; BUFFER_LEN], start: 0, end: 0, is_drained: false }
    }

    /// Returns the next part of the stream. Returns [`Next::Drained`] once before each wait, and when the wait exceeds
    /// the stream's time limit.
    ///
    /// # Errors
    /// Returns an error if the stream cannot be read, or has an invalid length.
    pub fn next(&mut self) -> io::Result<Next<'_>> {
        loop {
            if let Some(len) = self.block_len()? {
                let at = self.start;
                self.start += len;
                return Ok(Next::Block(Block { bytes: &self.buffer[at..at + len] }));
            }
            if !std::mem::replace(&mut self.is_drained, true) {
                return Ok(Next::Drained);
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                self.buffer.resize(self.end + BLOCK_LEN_MAX, 0);
            }
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(Next::End),
                Ok(len) => {
                    self.end += len;
                    self.is_drained = false;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Next::Drained);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the length of the first buffered block, if the block is whole.
    fn block_len(&self) -> io::Result<Option<usize>> {
        let buffered = &self.buffer[self.start..self.end];
        let Some(len) = word(buffered, 4) else { return Ok(None) };
        let len = len as usize;
        if !(FRAME_LEN..=BLOCK_LEN_MAX).contains(&len) || !len.is_multiple_of(4) {
            let message = format!("the daemon sent a block of {len} bytes; client and daemon may differ in version");
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        Ok((buffered.len() >= len).then_some(len))
    }
}

impl<'a> Block<'a> {
    /// Returns the type of the block.
    pub fn kind(self) -> u32 {
        word(self.bytes, 0).unwrap_or(0)
    }

    /// Returns the bytes of a packet; `None` if the block is no packet.
    pub fn packet(self) -> Option<&'a [u8]> {
        let len = word(self.bytes, 20).filter(|_| self.kind() == ENHANCED_PACKET)?;
        self.bytes.get(PACKET_DATA..)?.get(..len as usize)
    }

    /// Returns the number of lost packets. For a packet's block, these are the packets lost directly before this
    /// packet. For a block of statistics, these are all packets that the capture has lost.
    pub fn lost(self) -> u64 {
        let (start, option) = match (self.kind(), self.packet()) {
            (STATISTICS, _) => (20, ISB_OSDROP),
            (_, Some(packet)) => (PACKET_DATA + packet.len().next_multiple_of(4), EPB_DROPCOUNT),
            (_, None) => return 0,
        };
        let mut rest = self.bytes.get(start..).unwrap_or_default();
        while let Some((code, len)) = word(rest, 0).map(halves).filter(|(code, _)| *code != 0) {
            let value = rest.get(4..4 + usize::from(len)).unwrap_or_default();
            if code == option {
                return value.try_into().map_or(0, u64::from_ne_bytes);
            }
            rest = rest.get(4 + usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        0
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the two 16-bit fields of four bytes, in their order.
fn halves(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_ne_bytes();
    (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
}

/// Returns a block of statistics of interface 0.
pub fn statistics(time_ns: u64, written: u64, lost: u64) -> Vec<u8> {
    let mut body: Vec<u8> = Vec::new();
    let words = [0, (time_ns >> 32) as u32, time_ns as u32];
    body.extend(words.into_iter().flat_map(u32::to_ne_bytes));
    for (code, value) in [(ISB_OSDROP, lost), (ISB_USRDELIV, written)] {
        body.extend(code.to_ne_bytes());
        body.extend(8u16.to_ne_bytes());
        body.extend(value.to_ne_bytes());
    }
    body.extend([0; 4]);
    let len = ((body.len() + FRAME_LEN) as u32).to_ne_bytes();
    [&STATISTICS.to_ne_bytes()[..], &len, &body, &len].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use std::borrow::Cow;
    use std::time::Duration;

    /// Returns a stream of three packets. The second one follows after seven lost packets.
    fn stream() -> Vec<u8> {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let interface =
            InterfaceDescriptionBlock { linktype: pcap_file::DataLink::ETHERNET, snaplen: 96, options: vec![] };
        writer.write_pcapng_block(interface).unwrap();
        for lost in [0, 7, 0] {
            let mut options = vec![EnhancedPacketOption::Comment(Cow::Borrowed("x"))];
            if lost > 0 {
                options.push(EnhancedPacketOption::DropCount(lost));
            }
            let data = Cow::Owned(vec![1; 61]);
            let timestamp = Duration::from_secs(1);
            writer
                .write_pcapng_block(EnhancedPacketBlock { interface_id: 0, timestamp, original_len: 61, data, options })
                .unwrap();
        }
        [writer.into_inner(), statistics(1 << 40, 3, 9)].concat()
    }

    /// A reader that returns one byte per read.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let len = self.0.len().min(1);
            (&mut self.0).read(&mut to[..len])
        }
    }

    fn collected(from: impl Read) -> Vec<(u32, Option<usize>, u64)> {
        let (mut blocks, mut found) = (Blocks::new(from), Vec::new());
        loop {
            match blocks.next().unwrap() {
                Next::Block(block) => found.push((block.kind(), block.packet().map(<[u8]>::len), block.lost())),
                Next::Drained => {}
                Next::End => return found,
            }
        }
    }

    #[test]
    fn each_block_is_found_with_its_packet_and_its_losses_however_it_arrives() {
        let packet = |lost| (ENHANCED_PACKET, Some(61), lost);
        let expected = [(0x0a0d_0d0a, None, 0), (1, None, 0), packet(0), packet(7), packet(0), (STATISTICS, None, 9)];
        assert_eq!(collected(&stream()[..]), expected);
        assert_eq!(collected(Slow(&stream())), expected);
    }

    #[test]
    fn an_impossible_length_and_a_cut_block_do_no_harm() {
        for len in [0u32, 11, 14, u32::MAX] {
            let bytes = [ENHANCED_PACKET.to_ne_bytes(), len.to_ne_bytes(), [0; 4]].concat();
            let mut blocks = Blocks::new(&bytes[..]);
            assert!(matches!(blocks.next(), Ok(Next::Drained)) || len != 12);
            let found = std::iter::from_fn(|| match blocks.next() {
                Ok(Next::End) => None,
                other => Some(other.is_err()),
            });
            assert!(found.take(3).any(|is_refused| is_refused), "{len}");
        }
        let bytes = stream();
        for len in 0..bytes.len() {
            collected(&bytes[..len]);
            let block = Block { bytes: &bytes[len..] };
            let _ = (block.packet(), block.lost());
        }
    }
}

//! The files of a capture: one file, standard output, or a ring of files with a maximum size.

use super::blocks::{Block, statistics};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Size of the buffer of blocks, in bytes.
const BUFFER_LEN: usize = 256 << 10;

/// The destination of a capture's blocks.
pub struct Output {
    name: PathBuf,
    ring: Ring,
    to: Destination,
    /// The blocks before the first packet, with which each file starts.
    head: Vec<u8>,
    /// Whole blocks that are not yet written, and the number of packets among them.
    buffer: Vec<u8>,
    unwritten: u64,
    /// The length of the current file in bytes, including the buffered blocks.
    len: u64,
    /// The numbers of packets in the current file, and of packets lost while it was the current file.
    packets: u64,
    lost: u64,
    /// The number of files before the current file.
    files: usize,
}

/// The files of a capture that does not fit into one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    /// Maximum size of a file, in bytes; unlimited if 0.
    pub file_bytes_max: u64,
    /// Number of files; the oldest file is overwritten. Unlimited if 0.
    pub files: usize,
}

enum Destination {
    File(File),
    Other(Box<dyn Write>),
}

impl Output {
    /// Opens the first file; `-` is standard output.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(name: &Path, ring: Ring) -> io::Result<Self> {
        let to = if name == Path::new("-") {
            Destination::Other(Box::new(io::stdout()))
        } else {
            Destination::File(File::create(ring.path(name, 0))?)
        };
        let (head, buffer) = (Vec::new(), Vec::with_capacity(BUFFER_LEN));
        Ok(Self { name: name.to_owned(), ring, to, head, buffer, unwritten: 0, len: 0, packets: 0, lost: 0, files: 0 })
    }

    /// Returns the number of packets that are not yet written, or could not be written.
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Returns the path of the current file.
    pub fn path(&self) -> PathBuf {
        self.ring.path(&self.name, self.files)
    }

    /// Writes a block that precedes all packets. The block is repeated at the start of each later file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn head(&mut self, block: Block<'_>) -> io::Result<()> {
        self.head.extend_from_slice(block.bytes);
        self.append(block.bytes)
    }

    /// Writes a packet, in the next file if the current file has no room.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn packet(&mut self, block: Block<'_>) -> io::Result<()> {
        let len_max = self.ring.file_bytes_max;
        let len = self.len + (block.bytes.len() + statistics(0, 0, 0).len()) as u64;
        if len_max > 0 && len > len_max && self.packets > 0 {
            self.finish()?;
            self.files += 1;
            self.to = Destination::File(File::create(self.path())?);
            (self.len, self.packets, self.lost) = (0, 0, 0);
            self.append(&self.head.clone())?;
        }
        self.packets += 1;
        self.append(block.bytes)?;
        self.unwritten += 1;
        Ok(())
    }

    /// Adds to the number of lost packets in the statistics of the current file.
    pub fn count_lost(&mut self, packets: u64) {
        self.lost += packets;
    }

    /// Writes the statistics, and everything that is buffered.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn finish(&mut self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        self.append(&statistics(now, self.packets, self.lost))?;
        self.flush()
    }

    /// Writes everything that is buffered. After an error, the file ends with the last block before the buffered
    /// blocks.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = match &mut self.to {
            Destination::File(file) => file.write_all(&self.buffer),
            Destination::Other(other) => other.write_all(&self.buffer).and_then(|()| other.flush()),
        };
        if let (Err(_), Destination::File(file)) = (&written, &self.to) {
            // Remove an incomplete block, because a program could not read the file beyond it. The error of the write
            // is reported, so an error here is ignored.
            let _ = file.set_len(self.len - self.buffer.len() as u64);
        }
        if written.is_ok() {
            self.unwritten = 0;
        }
        self.buffer.clear();
        written
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.buffer.is_empty() && self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }
}

impl Ring {
    /// Returns the path of file `number`, named as tcpdump names its files.
    fn path(self, name: &Path, number: usize) -> PathBuf {
        let mut path = OsString::from(name);
        match (self.file_bytes_max, self.files) {
            (0, _) => {}
            (_, 0) if number == 0 => {}
            (_, 0) => path.push(number.to_string()),
            (_, files) => {
                let digits = (files - 1).to_string().len();
                path.push(format!("{:0digits$}", number % files));
            }
        }
        path.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_ring_are_named_as_by_tcpdump() {
        let paths = |files, numbers: &[usize]| -> Vec<String> {
            let ring = Ring { file_bytes_max: 1, files };
            numbers.iter().map(|number| ring.path(Path::new("f"), *number).display().to_string()).collect()
        };
        assert_eq!(paths(0, &[0, 1, 2]), ["f", "f1", "f2"]);
        assert_eq!(paths(3, &[0, 2, 3]), ["f0", "f2", "f0"]);
        assert_eq!(paths(11, &[0, 10, 11]), ["f00", "f10", "f00"]);
    }
}

//! The parser of `SET_MEM_TABLE`. Crate `vhost` refuses bytes after the last region, but User Mode Linux always sends
//! room for two regions.

use offramp_virtio::memory::{Extent, REGIONS_MAX};
use std::fs::File;
use std::os::fd::OwnedFd;

/// Length of the number of regions and its padding, in bytes (vhost-user, "Memory regions description").
const HEAD_LEN: usize = 8;
/// Length of one region, in bytes: guest address, length, user address, offset in the file.
const REGION_LEN: usize = 32;

/// The reason for a refused table.
#[derive(Debug, thiserror::Error)]
#[error("inconsistent memory table: {len} bytes and {fds} descriptors")]
pub(super) struct BadTable {
    len: usize,
    fds: usize,
}

/// Returns the regions of a table with their files. The caller must validate the regions.
pub(super) fn parse(payload: &[u8], fds: Vec<OwnedFd>) -> Result<Vec<(Extent, File)>, BadTable> {
    let bad = BadTable { len: payload.len(), fds: fds.len() };
    let Some((head, rest)) = payload.split_first_chunk::<HEAD_LEN>() else { return Err(bad) };
    // The number has four bytes, and the padding after it must be 0.
    let count = u64::from_le_bytes(*head);
    if !(1..=REGIONS_MAX as u64).contains(&count) || fds.len() as u64 != count {
        return Err(bad);
    }
    let len = count as usize * REGION_LEN;
    if rest.len() < len || rest.len() > REGIONS_MAX * REGION_LEN {
        return Err(bad);
    }
    Ok(rest[..len].chunks_exact(REGION_LEN).map(extent).zip(fds.into_iter().map(File::from)).collect())
}

fn extent(region: &[u8]) -> Extent {
    let mut fields = region.chunks_exact(8).map(|field| u64::from_le_bytes(field.try_into().unwrap_or_default()));
    let mut next = || fields.next().unwrap_or_default();
    Extent { guest: next(), len: next(), user: next(), file_offset: next() }
}

//! The boot files of a guest: Debian's kernel or User Mode Linux, and a file system with busybox, ethtool and the
//! virtio modules.

use super::{kernel, tcp};
use crate::failure::{Doing, Result};
use crate::packages::{self, BUSYBOX, ETHTOOL, UML};
use crate::scratch::Scratch;
use offramp_testbed::guest::image;
use offramp_testbed::guest::kernel::Kernel;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes sent by the guest.
const PAYLOAD_LEN: usize = 8 << 20;
/// Chooses those bytes.
const PAYLOAD_SEED: u64 = 1;

/// The guest's first and only program of its own: it sets up the card, then runs the console's commands.
const INIT: &str = include_str!("init.sh");

/// Additions to the file system of every guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Programs for `/bin`, with their libraries.
    pub programs: &'a [PathBuf],
    /// Modules of its kernel, loaded at boot.
    pub modules: &'a [&'a str],
    /// Other files, by their paths without the leading slash.
    pub files: &'a [(&'a str, &'a [u8])],
}

/// A kernel and its file system.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: Kernel,
    /// The archive of the file system.
    pub initramfs: PathBuf,
    /// The content of the guest's `/payload`.
    pub payload: Vec<u8>,
}

impl Image {
    /// Gets Debian's kernel, once, and builds the file system.
    ///
    /// # Errors
    /// When a package cannot be had, or has other contents than it should.
    pub fn build(cache: Option<&Path>, extras: Extras, scratch: &Scratch) -> Result<Self> {
        let kernel = Kernel::find(Some(&kernel::path(cache)?), None).doing("the guest's kernel")?;
        Self::with(kernel, extras, scratch)
    }

    /// Builds the file system for User Mode Linux.
    ///
    /// # Errors
    /// As [`Image::build`].
    pub fn user_mode(extras: Extras, scratch: &Scratch) -> Result<Self> {
        packages::need(UML)?;
        Self::with(Kernel::user_mode(None).doing("User Mode Linux")?, extras, scratch)
    }

    /// Builds the file system for that kernel.
    ///
    /// # Errors
    /// As [`Image::build`].
    pub fn with(kernel: Kernel, extras: Extras, scratch: &Scratch) -> Result<Self> {
        let payload = tcp::random_bytes(PAYLOAD_SEED, PAYLOAD_LEN);
        let archive = file_system(&kernel, extras, &payload)?;
        let initramfs = scratch.path().join("initramfs");
        fs::write(&initramfs, archive).doing(initramfs.display())?;
        Ok(Self { kernel, initramfs, payload })
    }
}

fn file_system(kernel: &Kernel, extras: Extras, payload: &[u8]) -> Result<Vec<u8>> {
    let mut archive = image::skeleton();
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("payload", 0o644, payload);
    for (path, bytes) in extras.files {
        archive.file(path, 0o644, bytes);
    }
    let busybox = packages::need(BUSYBOX)?;
    // Busybox has no loader to ask for libraries.
    archive.file("bin/busybox", 0o755, &fs::read(&busybox).doing(busybox.display())?);
    for program in extras.programs.iter().chain([&packages::need(ETHTOOL)?]) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        image::add_program(&mut archive, &format!("bin/{name}"), program).doing("the guest's file system")?;
    }
    image::add_modules(&mut archive, kernel, extras.modules).doing("the guest's file system")?;
    Ok(archive.finish())
}

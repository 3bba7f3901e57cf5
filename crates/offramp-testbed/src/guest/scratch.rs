//! Temporary files for a guest's start.

use super::GuestError;
use crate::error::TestbedError;
use std::path::{Path, PathBuf};

/// A directory, removed with its contents on drop.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self, TestbedError> {
        let template = std::env::temp_dir().join("offramp-lab-XXXXXX");
        let made = nix::unistd::mkdtemp(&template).map_err(|e| GuestError::at(template)(e.into()))?;
        Ok(Self(made))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_goes_with_what_is_in_it() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.0.clone();
        std::fs::write(path.join("file"), "text").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}

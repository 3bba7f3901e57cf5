//! Temporary files.

use crate::failure::{Doing, Result};
use std::path::{Path, PathBuf};

/// A temporary directory, removed with its contents on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes an empty directory in the system's directory for temporary files.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be made.
    pub fn new() -> Result<Self> {
        let template = std::env::temp_dir().join("offramp-XXXXXX");
        nix::unistd::mkdtemp(&template).map(Self).doing(format_args!("making {}", template.display()))
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in the directory, as text. The system's directory for temporary files must have an
    /// ASCII path.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("left behind: {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_goes_with_its_files() {
        let scratch = Scratch::new().unwrap();
        std::fs::write(scratch.file("a"), b"a").unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}

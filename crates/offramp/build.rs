//! Sets `OFFRAMP_VERSION` to the package's version and the commit, such as `0.1.0 (0123456789ab)`. A release sets the
//! variable itself (`tools/release`). Outside of a Git repository, the version has no commit.
//!
//! The files of the repository are read without the program `git`, which refuses a repository of another user. Cargo
//! runs this script again only after a change of these files.

use std::env;
use std::fs;
use std::path::Path;

/// Number of digits of a commit's short name, as in `tools/release`.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=OFFRAMP_VERSION");
    if env::var_os("OFFRAMP_VERSION").is_none() {
        let root = Path::new("../..");
        // If the crate is built from its package, a repository in a parent directory belongs to another project.
        let commit = root.join("crates/offramp/build.rs").exists().then(|| commit(root)).flatten();
        let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
        println!("cargo::rustc-env=OFFRAMP_VERSION={}{commit}", env!("CARGO_PKG_VERSION"));
    }
}

/// Returns the short name of the commit checked out in `root` (gitrepository-layout(5)).
fn commit(root: &Path) -> Option<String> {
    let mut git = root.join(".git");
    if git.is_file() {
        // In a linked work tree (git-worktree(1)), `.git` is a file with the path of the directory.
        git = root.join(fs::read_to_string(&git).ok()?.strip_prefix("gitdir: ")?.trim_end());
    }
    if !git.is_dir() {
        return None;
    }
    let head = read(&git.join("HEAD"))?;
    let commit = match head.strip_prefix("ref: ") {
        None => head,
        Some(branch) => {
            let common = fs::read_to_string(git.join("commondir")).map(|path| git.join(path.trim_end())).unwrap_or(git);
            read(&common.join(branch)).or_else(|| {
                let packed = read(&common.join("packed-refs"))?;
                let line = packed.lines().find(|line| line.split(' ').nth(1) == Some(branch))?;
                Some(line.to_owned())
            })?
        }
    };
    let short = commit.get(..DIGITS)?;
    short.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| short.to_owned())
}

/// Reads a file, and runs this script again after a change of the file. Cargo takes a missing file for a changed one,
/// so the nearest existing parent directory is watched in place of a missing file.
fn read(file: &Path) -> Option<String> {
    let watched = file.ancestors().find(|path| path.exists())?;
    println!("cargo::rerun-if-changed={}", watched.display());
    fs::read_to_string(file).ok().map(|text| text.trim_end().to_owned())
}

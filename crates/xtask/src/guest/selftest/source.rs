//! Where the kernel's test programs come from: Debian's package of the kernel's source, about 150 MB, of which three
//! files are unpacked. All of it goes with the scratch directory.

use crate::failure::{Doing, Failure, Result, failed, not_possible};
use crate::packages::{self, CC, XZ};
use crate::scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The first kernel of Debian 12 whose source has `csum.c`.
const PACKAGE: &str = "linux-source-6.12";
/// Where they lie in it.
const SELFTESTS: &str = "tools/testing/selftests";
/// What is unpacked: the programs, and what they include.
const FILES: [&str; 3] = ["net/gro.c", "net/lib/csum.c", "kselftest.h"];
/// The programs: a name, and the source.
const PROGRAMS: [(&str, &str); 2] = [("gro", FILES[0]), ("csum", FILES[1])];
/// Prints the archive in the package, and unpacks the files that are named from the fourth argument on. `tar` stops
/// behind the last one, which ends the pipe early: what counts is that the files are there.
const UNPACK: &str = "package=$1 archive=$2 to=$3; shift 3
    dpkg-deb --fsys-tarfile \"$package\" | tar -xO \"$archive\" | tar -xJ -C \"$to\" --occurrence=1 \"$@\"";

/// The programs, built.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Where a program is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where all are.
    pub fn paths(&self) -> Vec<PathBuf> {
        PROGRAMS.iter().map(|(name, _)| self.path(name)).collect()
    }
}

/// Fetches and builds the programs, without libraries of their own, so that they run in any guest.
///
/// # Errors
/// [`Failure::NotPossible`] when the package cannot be had; a failure when it does not have what it should, or what it
/// has does not build.
pub fn build(scratch: &Scratch) -> Result<Programs> {
    let (cc, _) = (packages::need(CC)?, packages::need(XZ)?);
    let directory = scratch.path();
    let package = match packages::download(PACKAGE, directory) {
        Err(Failure::Failed(why)) => return not_possible(format!("the kernel's source is not to be had: {why}")),
        other => other?,
    };
    unpack(&package, directory)?;
    fs::remove_file(&package).doing(package.display())?;
    let selftests = selftests(directory);
    for (name, source) in PROGRAMS {
        let mut command = Command::new(&cc);
        command.args(["-O1", "-w", "-static", "-I"]).arg(&selftests).arg("-o").arg(directory.join(name));
        let built = command.arg(selftests.join(source)).output().doing("running cc")?;
        if !built.status.success() {
            return failed(format!("building {source} of {PACKAGE}:\n{}", said(&built)));
        }
    }
    Ok(Programs(directory.to_owned()))
}

fn selftests(directory: &Path) -> PathBuf {
    directory.join(PACKAGE).join(SELFTESTS)
}

fn unpack(package: &Path, directory: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", UNPACK, "sh"]).arg(package).arg(format!("./usr/src/{PACKAGE}.tar.xz")).arg(directory);
    command.args(FILES.map(|file| format!("{PACKAGE}/{SELFTESTS}/{file}")));
    let unpacked = command.output().doing("unpacking the kernel's source")?;
    let missing = |file: &&&str| !selftests(directory).join(file).is_file();
    match FILES.iter().find(missing) {
        Some(file) => failed(format!("{PACKAGE} has no {SELFTESTS}/{file}:\n{}", said(&unpacked))),
        None => Ok(()),
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

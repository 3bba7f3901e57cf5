//! Source of the kernel's test programs: Debian's packages of the kernel source, about 150 MB each, from which four
//! files are unpacked. All files are removed with the scratch directory.

use offramp_testbed::failure::{Doing, Failure, Result, failed, not_possible};
use offramp_testbed::packages::{self, CC, XZ};
use offramp_testbed::scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Directory of the programs in the kernel source.
const SELFTESTS: &str = "tools/testing/selftests";
/// The header used by both programs.
const HEADER: &str = "kselftest.h";

/// A test program and the location of its source.
struct Source {
    program: &'static str,
    package: &'static str,
    file: &'static str,
}

const SOURCES: [Source; 2] = [
    // Kernel 6.12 is the first kernel in Debian 12 with the program.
    Source { program: "csum", package: "linux-source-6.12", file: "net/lib/csum.c" },
    // The program of 6.12 expects that frames with the same IPv4 identification and without DF are not coalesced.
    // Earlier versions of the program do not have this expectation. Linux coalesces these frames again since 6.18, as
    // offramp does.
    Source { program: "gro", package: "linux-source-6.1", file: "net/gro.c" },
];
/// Shell script that unpacks files from the archive in a package. The fourth and later arguments name the files. `tar`
/// stops after the last file, and the other programs of the pipe then fail. The caller therefore ignores the exit
/// status, and checks that the files exist.
const UNPACK: &str = "package=$1 archive=$2 to=$3; shift 3
    dpkg-deb --fsys-tarfile \"$package\" | tar -xO \"$archive\" | tar -xJ -C \"$to\" --occurrence=1 \"$@\"";

/// The directory with the built programs.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Returns the path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the paths of all programs.
    pub fn paths(&self) -> Vec<PathBuf> {
        SOURCES.iter().map(|source| self.path(source.program)).collect()
    }
}

/// Fetches and builds the programs, statically linked, so that they run in any guest.
///
/// # Errors
/// Returns [`Failure::NotPossible`] if a package is not available. Returns another failure if a package does not have
/// the expected files, or a program does not build.
pub fn build(scratch: &Scratch) -> Result<Programs> {
    packages::need(XZ)?;
    let (cc, directory) = (packages::need(CC)?, scratch.path());
    SOURCES.iter().try_for_each(|source| source.build(&cc, directory))?;
    Ok(Programs(directory.to_owned()))
}

impl Source {
    fn build(&self, cc: &Path, directory: &Path) -> Result<()> {
        let package = match packages::download(self.package, directory) {
            Err(Failure::Failed(why)) => return not_possible(format!("the kernel's source is not available: {why}")),
            other => other?,
        };
        self.unpack(&package, directory)?;
        fs::remove_file(&package).doing(package.display())?;
        let selftests = self.selftests(directory);
        let mut command = Command::new(cc);
        command.args(["-O1", "-w", "-static", "-I"]).arg(&selftests).arg("-o").arg(directory.join(self.program));
        let built = command.arg(selftests.join(self.file)).output().doing("running cc")?;
        if built.status.success() {
            return Ok(());
        }
        failed(format!("building {} of {}:\n{}", self.file, self.package, said(&built)))
    }

    fn selftests(&self, directory: &Path) -> PathBuf {
        directory.join(self.package).join(SELFTESTS)
    }

    fn unpack(&self, package: &Path, directory: &Path) -> Result<()> {
        let (name, files) = (self.package, [self.file, HEADER]);
        let mut command = Command::new("sh");
        command.args(["-c", UNPACK, "sh"]).arg(package).arg(format!("./usr/src/{name}.tar.xz")).arg(directory);
        command.args(files.map(|file| format!("{name}/{SELFTESTS}/{file}")));
        let unpacked = command.output().doing("unpacking the kernel's source")?;
        let missing = |file: &&&str| !self.selftests(directory).join(file).is_file();
        match files.iter().find(missing) {
            Some(file) => failed(format!("{name} has no {SELFTESTS}/{file}:\n{}", said(&unpacked))),
            None => Ok(()),
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

//! The parts of a release: the program with its SBOM, a Debian package, a static program, a container image, and
//! checksums.

mod image;

use offramp_testbed::cargo::ROOT;
use offramp_testbed::failure::{Doing, Result, failed};
use offramp_testbed::packages::{self, Needed};
use offramp_testbed::program::shown;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's target directory. The package's list of files (`crates/offramp/Cargo.toml`) also contains this path.
const TARGET: &str = "target";
/// Man pages and completions, in [`TARGET`].
const PAGES: &str = "dist/pages";
/// Target triple of the static program.
const STATIC_TRIPLE: &str = "x86_64-unknown-linux-musl";
const CARGO_DEB: Needed = Needed { program: "cargo-deb", packages: &[] };
/// The C compiler with the static library, and the program that determines a package's required libraries.
const MUSL: Needed = Needed { program: "musl-gcc", packages: &["musl-tools"] };
const SHLIBDEPS: Needed = Needed { program: "dpkg-shlibdeps", packages: &["dpkg-dev"] };

/// Make all parts of a release.
#[derive(clap::Args)]
pub struct Args {
    /// Output directory; old content is removed
    #[arg(long, value_name = "DIR", default_value = "target/dist/release")]
    out: PathBuf,
}

/// Builds the release and prints the checksums.
///
/// # Errors
/// Returns an error if a part cannot be built.
pub fn run(args: &Args) -> Result<()> {
    for needed in [MUSL, SHLIBDEPS] {
        packages::need(needed)?;
    }
    if packages::find(CARGO_DEB.program).is_none() {
        succeed(Command::new("cargo").args(["install", "--locked", CARGO_DEB.program]))?;
    }
    succeed(Command::new("rustup").args(["target", "add", STATIC_TRIPLE]))?;
    let (root, target) = (Path::new(ROOT), Path::new(ROOT).join(TARGET));
    let out = std::path::absolute(&args.out).doing("--out")?;
    if out.exists() {
        fs::remove_dir_all(&out).doing(format!("removing {}", out.display()))?;
    }
    fs::create_dir_all(&out).doing(format!("making {}", out.display()))?;

    succeed(&mut release(root))?;
    succeed(release(root).arg(STATIC_TRIPLE))?;
    let program = target.join("release/offramp");
    pages(&program, &target.join(PAGES))?;
    let deb = ["deb", "--locked", "--no-build", "--strip", "--package", "offramp", "--output"];
    succeed(Command::new("cargo").args(deb).arg(out.join("offramp.deb")).current_dir(root))?;
    let bare = out.join("offramp");
    succeed(Command::new("strip").arg("-o").arg(&bare).arg(target.join(STATIC_TRIPLE).join("release/offramp")))?;
    image::write(&bare, &out.join("offramp-oci.tar"))?;
    let parts = out.join("offramp.cdx.json");
    fs::copy(target.join("release/offramp.cdx.json"), &parts).doing(format!("writing {}", parts.display()))?;
    sums(&out)
}

/// Writes the man pages to `man` in `directory`, and the completions of Debian's shells to `completions`.
fn pages(program: &Path, directory: &Path) -> Result<()> {
    succeed(Command::new(program).arg("man").arg(directory.join("man")))?;
    let completions = directory.join("completions");
    fs::create_dir_all(&completions).doing(format!("making {}", completions.display()))?;
    for (shell, name) in [("bash", "offramp.bash"), ("fish", "offramp.fish"), ("zsh", "_offramp")] {
        let path = completions.join(name);
        let file = File::create(&path).doing(format!("writing {}", path.display()))?;
        succeed(Command::new(program).args(["completions", shell]).stdout(file))?;
    }
    Ok(())
}

fn release(root: &Path) -> Command {
    let mut command = Command::new(root.join("tools/release"));
    // Remove the variable `CARGO_TARGET_DIR` of the Cargo run that built this program.
    command.env_remove("CARGO_TARGET_DIR").current_dir(root);
    command
}

/// Writes and prints `SHA256SUMS` in the format of `sha256sum --check`.
fn sums(out: &Path) -> Result<()> {
    let entries = fs::read_dir(out).doing(format!("reading {}", out.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut text = String::new();
    for file in &files {
        let bytes = fs::read(file).doing(format!("reading {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().display();
        let _ = writeln!(text, "{}  {name}", hex(&bytes));
    }
    print!("{text}");
    fs::write(out.join("SHA256SUMS"), text).doing("writing SHA256SUMS")
}

/// Returns the SHA-256 of `bytes` in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().doing(shown(command))?;
    if status.success() { Ok(()) } else { failed(format!("{}: {status}", shown(command))) }
}

//! A container image that contains only the static program, as an OCI image layout in one tar file (image-spec 1.1).
//! `podman load`, `skopeo copy oci-archive:…` and `docker load` (version 25 and later) can read the image. The image is
//! built without a container daemon.

use super::{hex, succeed};
use offramp_testbed::failure::{Doing, Result};
use offramp_testbed::scratch::Scratch;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// User id and group id of nobody.
const NOBODY: u32 = 65_534;
const PROGRAM: &str = "usr/bin/offramp";
/// The directories writable by the user: for sockets, and for the state of keys.
const WRITABLE: [&str; 2] = ["run/offramp", "var/lib/offramp"];
/// Time stamp of all files and directories in the image, so that the same program gives the same image.
const TIME: &str = "@0";

/// Writes the image to `to`.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn write(program: &Path, to: &Path) -> Result<()> {
    let scratch = Scratch::new()?;
    let (root, layout) = (scratch.path().join("root"), scratch.path().join("layout"));
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).doing("making the image's directories")?;
    fill(&root, program)?;
    let layer = scratch.path().join("layer.tar");
    tar(&root, &layer)?;

    let layer = blob(&blobs, "layer.v1.tar", &fs::read(&layer).doing("reading the layer")?)?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": format!("{NOBODY}:{NOBODY}"),
            "Entrypoint": [format!("/{PROGRAM}")],
            "Cmd": ["up", "/etc/offramp/offramp.toml"],
        },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = blob(&blobs, "config.v1+json", config.to_string().as_bytes())?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer] });
    let mut manifest = blob(&blobs, "manifest.v1+json", manifest.to_string().as_bytes())?;
    let name = format!("offramp:{}", env!("CARGO_PKG_VERSION"));
    manifest["annotations"] =
        json!({ "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION"), "io.containerd.image.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(layout.join("index.json"), index.to_string()).doing("writing index.json")?;
    fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())
        .doing("writing oci-layout")?;
    tar(&layout, to)
}

/// Creates the file system of the image.
fn fill(root: &Path, program: &Path) -> Result<()> {
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    for directory in ["etc/offramp", "usr/bin", "tmp"].iter().chain(&WRITABLE) {
        fs::create_dir_all(root.join(directory)).doing("making the image's directories")?;
    }
    mode(&root.join("tmp"), 0o1777).doing("making the image's directories")?;
    for directory in WRITABLE {
        chown(root.join(directory), Some(NOBODY), Some(NOBODY)).doing("giving the image's directories away")?;
    }
    fs::copy(program, root.join(PROGRAM)).doing("copying the program")?;
    mode(&root.join(PROGRAM), 0o755).doing("copying the program")?;
    let users = format!("nobody:x:{NOBODY}:{NOBODY}::/nonexistent:/sbin/nologin\n");
    fs::write(root.join("etc/passwd"), users).doing("writing /etc/passwd")?;
    fs::write(root.join("etc/group"), format!("nogroup:x:{NOBODY}:\n")).doing("writing /etc/group")
}

/// Packs a directory into a reproducible tar file.
fn tar(directory: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--create", "--sort=name", "--numeric-owner", "--mtime", TIME, "--format=gnu", "--file"]);
    succeed(command.arg(to).arg("--directory").arg(directory).arg("."))
}

/// Stores a blob under its digest, and returns its descriptor.
fn blob(blobs: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    let digest = hex(bytes);
    fs::write(blobs.join(&digest), bytes).doing("writing a part of the image")?;
    let media_type = format!("application/vnd.oci.image.{kind}");
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}

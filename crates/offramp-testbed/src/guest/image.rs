//! The contents of a guest's initramfs: one program, its libraries, and kernel modules.

use super::GuestError;
use super::cpio::Archive;
use super::kernel::Kernel;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Directory of the modules, and of the list of modules in load order.
const MODULE_DIRECTORY: &str = "modules";
/// Path of the module list in the guest.
pub(super) const MODULE_ORDER: &str = "/modules/order";
/// Device number of a program's default terminal (Linux `Documentation/admin-guide/devices.txt`).
const CONSOLE: (u32, u32) = (5, 1);
/// Environment variable that makes the loader list the libraries instead of running the program (ld.so(8)). A program
/// without a loader ignores the variable, runs, and prints its version.
const TRACE: (&str, &str) = ("LD_TRACE_LOADED_OBJECTS", "1");

/// Builds an archive with `program` as the first program, for a guest with `kernel`. The archive also contains the
/// card's modules and the modules in `more`.
///
/// # Errors
/// Returns an error if a file or a module is missing.
pub fn build(program: &Path, kernel: &Kernel, more: &[&str]) -> Result<Vec<u8>, GuestError> {
    let mut archive = skeleton();
    add_program(&mut archive, "init", program)?;
    add_modules(&mut archive, kernel, more)?;
    Ok(archive.finish())
}

/// Builds an archive with the directories and the terminal of every guest.
pub fn skeleton() -> Archive {
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev", "tmp"] {
        archive.directory(directory);
    }
    archive.character_device("dev/console", CONSOLE.0, CONSOLE.1);
    archive
}

/// Adds a program at `path` (without a leading slash), and its libraries at the paths listed by the loader. To list the
/// libraries, the function starts the program with `--version`. A program without a loader only prints its version.
///
/// # Errors
/// Returns an error if a file cannot be read, or the program cannot be started on this machine.
pub fn add_program(archive: &mut Archive, path: &str, program: &Path) -> Result<(), GuestError> {
    archive.file(path, 0o755, loaded_part(&read(program)?));
    for library in libraries_of(program)? {
        archive.file(library.trim_start_matches('/'), 0o755, loaded_part(&read(Path::new(&library))?));
    }
    Ok(())
}

/// Adds the network card's modules and the modules in `more`, with all dependencies, to `/modules`. The file
/// `/modules/order` lists the modules' paths in load order, one per line.
///
/// # Errors
/// Returns an error if a module is missing or cannot be read.
pub fn add_modules(archive: &mut Archive, kernel: &Kernel, more: &[&str]) -> Result<(), GuestError> {
    let mut order = String::new();
    for (name, bytes) in kernel.modules(&[kernel.card, more].concat())? {
        let path = format!("{MODULE_DIRECTORY}/{name}.ko");
        archive.file(&path, 0o644, &bytes);
        order.extend(["/", path.as_str(), "\n"]);
    }
    archive.file(MODULE_ORDER.trim_start_matches('/'), 0o644, order.as_bytes());
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, GuestError> {
    fs::read(path).map_err(GuestError::at(path))
}

/// Returns the loaded part of an ELF file for 64-bit little-endian machines. Symbols and debug information are omitted.
/// They are the largest part of a program, and would only fill the guest's memory. A file of another format is returned
/// whole.
fn loaded_part(file: &[u8]) -> &[u8] {
    loaded_len(file).and_then(|len| file.get(..len)).unwrap_or(file)
}

/// Returns the file offset of the end of the last segment (System V ABI, "ELF Header", "Program Header").
fn loaded_len(file: &[u8]) -> Option<usize> {
    const IDENTITY: &[u8] = b"\x7fELF\x02\x01";
    if !file.starts_with(IDENTITY) {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*file.get(at..)?.first_chunk()?)));
    let word = |at: usize| usize::try_from(u64::from_le_bytes(*file.get(at..)?.first_chunk()?)).ok();
    let (table, entry_len, entries) = (word(0x20)?, half(0x36)?, half(0x38)?);
    let end_of = |entry: usize| {
        let header = table.checked_add(entry * entry_len)?;
        word(header.checked_add(8)?)?.checked_add(word(header.checked_add(32)?)?)
    };
    let ends: Option<Vec<usize>> = (0..entries).map(end_of).collect();
    ends?.into_iter().max()
}

fn libraries_of(program: &Path) -> Result<Vec<String>, GuestError> {
    let output =
        Command::new(program).arg("--version").env(TRACE.0, TRACE.1).output().map_err(GuestError::at(program))?;
    Ok(libraries(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses the absolute paths in the loader's output. The guest gets each file at its path on this machine.
fn libraries(trace: &str) -> Vec<String> {
    trace.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_a_loader_names_are_found() {
        let trace = "\tlinux-vdso.so.1 (0x00007f)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x0)\n\t\
                     /lib64/ld-linux-x86-64.so.2 (0x0)\n";
        assert_eq!(libraries(trace), ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn a_program_without_its_symbols_still_runs() {
        let whole = fs::read("/bin/true").unwrap();
        let path = std::env::temp_dir().join(format!("offramp-loaded-{}", std::process::id()));
        let written = path.with_extension("written");
        fs::write(&written, loaded_part(&whole)).unwrap();
        // The kernel refuses to run a file that is open for writing. If this process wrote the program, a child of
        // another thread could inherit the write descriptor. `install` therefore writes the program in another process.
        assert!(Command::new("install").arg("-m755").args([&written, &path]).status().unwrap().success());
        let status = Command::new(&path).status();
        fs::remove_file(written).unwrap();
        fs::remove_file(path).unwrap();
        assert!(loaded_part(&whole).len() < whole.len() && status.unwrap().success());
    }

    #[test]
    fn what_is_no_program_is_left_whole() {
        for file in [&b"#!/bin/sh"[..], b"", b"\x7fELF\x02\x01", &[0x7f, b'E', b'L', b'F', 2, 1].repeat(20)] {
            assert_eq!(loaded_part(file), file);
        }
    }

    #[test]
    fn a_program_lies_in_the_archive_with_its_libraries() {
        let mut archive = skeleton();
        add_program(&mut archive, "bin/true", Path::new("/bin/true")).unwrap();
        let bytes = archive.finish();
        let has = |path: &str| bytes.windows(path.len()).any(|window| window == path.as_bytes());
        assert!(has("bin/true") && has("ld-linux") && has("dev/console"));
    }

    #[test]
    fn a_program_without_a_loader_needs_no_libraries() {
        assert!(libraries("offramp 0.1.0\n").is_empty());
    }

    #[test]
    fn the_loader_of_this_very_program_names_its_libraries() {
        let found = libraries_of(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.iter().all(|file| Path::new(file).is_file()), "{found:?}");
    }
}

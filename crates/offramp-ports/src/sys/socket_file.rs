//! The file of a listening Unix socket (unix(7)): creation, takeover and removal.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockname, getsockopt, listen as listen_on, socket,
    sockopt,
};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat};
use nix::unistd::{AccessFlags, Gid, eaccess, fchownat, geteuid};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Permissions of the file during creation: only the owner has access.
const MAKING_MODE: Mode = Mode::from_bits_truncate(0o600);
/// Maximum number of attempts if other processes create and remove files at the path at the same time.
const TRIES_MAX: usize = 8;

/// The permissions of a socket's file, which control connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRights {
    /// Permission bits. A connection needs write permission.
    pub mode: u32,
    /// The file's group. If `None`, the process's own group.
    pub group: Option<Gid>,
}

impl Default for SocketRights {
    /// Permits only the owner to connect.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// An error from creating a socket.
#[derive(Debug)]
pub enum MakeError {
    /// Another process listens at the path.
    InUse,
    /// The path has another kind of file, which is left unchanged.
    NoSocket,
    /// A system call failed.
    System {
        /// The failed action.
        doing: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// The action reported when setting a socket's group fails.
pub const GIVING: &str = "changing the socket's group";

/// Converts a system call's error.
fn system<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> MakeError {
    move |cause| MakeError::System { doing, cause: cause.into() }
}

/// Listens at `path`. The file gets its permissions and group before its final name, so that no other user can connect
/// before the permissions apply. The socket of a dead process is replaced.
///
/// # Errors
/// Returns an error if the path is occupied, or a system call fails.
pub fn listen(path: &Path, rights: SocketRights) -> Result<(UnixListener, SocketFile), MakeError> {
    let making = Made(made_name(path));
    // Remove a file left by a killed process with the same process id.
    let _ = fs::remove_file(&making.0);
    let listener = listen_private(&making.0).map_err(system("creating the socket"))?;
    give(&making.0, rights)?;
    let file = SocketFile::new(&making.0, path).map_err(system("reading the file's metadata"))?;
    put_in_place(&making.0, path)?;
    Ok((listener, file))
}

/// Returns the listening Unix stream socket that this process inherited as descriptor `descriptor`. Call this function
/// once, before the process opens any file: the result takes ownership of the descriptor.
///
/// # Errors
/// Returns an error if the descriptor is 0 to 2, is not open, or is not a listening Unix stream socket.
pub fn passed(descriptor: RawFd) -> io::Result<UnixListener> {
    if descriptor <= libc::STDERR_FILENO {
        return Err(io::Error::other("0 to 2 are standard input, output and error"));
    }
    // SAFETY: the call reads the flags of a descriptor number, which need not be open.
    Errno::result(unsafe { libc::fcntl(descriptor, libc::F_GETFD) })?;
    // SAFETY: the descriptor is open, and the caller guarantees that this process does not use the descriptor
    // elsewhere.
    let fd = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let is_stream = getsockopt(&fd, sockopt::SockType)? == SockType::Stream;
    let is_unix = getsockname::<UnixAddr>(descriptor).is_ok();
    if !(is_unix && is_stream && getsockopt(&fd, sockopt::AcceptConn)?) {
        return Err(io::Error::other("not a listening Unix stream socket"));
    }
    // A program started by this process must not keep the socket open.
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let listener = UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Checks that the path is free: no file exists, or only the socket of a dead process.
///
/// # Errors
/// Returns an error if another process listens at the path, or the path has another kind of file.
pub fn check_free(path: &Path) -> Result<(), MakeError> {
    match occupant(path).map_err(system("checking for a listener"))? {
        Occupant::Nobody | Occupant::Dead => Ok(()),
        Occupant::Listener => Err(MakeError::InUse),
        Occupant::NoSocket => Err(MakeError::NoSocket),
    }
}

/// Checks that this process may create files in the directory of `path`.
///
/// # Errors
/// Returns an error if the directory does not exist or refuses this process.
pub fn may_create(path: &Path) -> Result<(), MakeError> {
    let directory = path.parent().unwrap_or(path);
    eaccess(directory, AccessFlags::W_OK | AccessFlags::X_OK).map_err(system("creating the socket"))
}

/// Listens at a path, with access only for the owner. The kernel copies the socket's permissions to its file.
fn listen_private(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&fd, MAKING_MODE)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen_on(&fd, Backlog::MAXCONN)?;
    Ok(fd.into())
}

/// Sets the file's group and then its permissions, so that the permissions never apply to the wrong group. Both changes
/// use one descriptor, so that a user who can write to the directory cannot substitute another file.
fn give(made: &Path, rights: SocketRights) -> Result<(), MakeError> {
    let file = open_own_socket(made).map_err(system("reading the file's metadata"))?;
    if rights.group.is_some() {
        fchownat(&file, "", None, rights.group, AtFlags::AT_EMPTY_PATH).map_err(system(GIVING))?;
    }
    // fchmod(2) refuses a descriptor opened with `O_PATH`.
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(place, fs::Permissions::from_mode(rights.mode))
        .map_err(system("setting the socket's permissions"))
}

fn open_own_socket(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let status = fstat(&file)?;
    let is_socket = status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFSOCK.bits();
    if is_socket && status.st_uid == geteuid().as_raw() {
        return Ok(file);
    }
    Err(io::Error::other("another file replaced the socket; allow only this process's user to write to the directory"))
}

/// A file under its temporary name. Dropping this value removes the temporary name.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the temporary name of a socket: in the same directory, with the id of this process as suffix.
fn made_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

/// Links the file to its final name. A link fails if the name exists, so only one of two processes succeeds.
fn put_in_place(made: &Path, path: &Path) -> Result<(), MakeError> {
    for _ in 0..TRIES_MAX {
        match fs::hard_link(made, path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(system("moving the socket into place")(error)),
        }
        remove_dead(path, &Made(made_name(&made_name(path))))?;
    }
    Err(MakeError::InUse)
}

/// Removes the socket of a dead process. The file is renamed before the final check, because another process may just
/// have created its own socket at the path. If the renamed file is not the socket of a dead process, the file gets its
/// name back.
fn remove_dead(path: &Path, aside: &Made) -> Result<(), MakeError> {
    check_free(path)?;
    match fs::rename(path, &aside.0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(system("removing the socket of a dead process")(cause)),
        Ok(()) => {}
    }
    if check_free(&aside.0).is_ok() {
        return Ok(());
    }
    // If a third process has created a file at the path since the rename, that file stays.
    let _ = fs::hard_link(&aside.0, path);
    Err(MakeError::InUse)
}

/// The occupant of a socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// No file exists at the path.
    Nobody,
    /// A socket without a listener: its creator is dead.
    Dead,
    /// A socket with a listener.
    Listener,
    /// Another kind of file. The kernel refuses a connection to a file that is not a socket with the same error as to a
    /// dead socket.
    NoSocket,
}

/// Returns the occupant of `path`. A connection attempt shows whether a socket has a listener.
///
/// # Errors
/// Returns an error if a system call fails and the occupant is therefore unknown.
pub fn occupant(path: &Path) -> io::Result<Occupant> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nobody),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => return Ok(Occupant::NoSocket),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Ok(Occupant::Listener),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(Occupant::Dead),
            // The file was just removed.
            io::ErrorKind::NotFound => Ok(Occupant::Nobody),
            // The accept queue of the socket is full, so the socket has a listener.
            io::ErrorKind::WouldBlock => Ok(Occupant::Listener),
            _ => Err(error),
        },
    }
}

/// The file of a socket created by this process. Dropping this value removes the file, unless another file has replaced
/// it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode numbers.
    identity: (u64, u64),
}

impl SocketFile {
    /// Returns an owner for the existing file `made`, which is or will be named `path`.
    ///
    /// # Errors
    /// Returns an error if the file `made` does not exist.
    pub fn new(made: &Path, path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(made)? })
    }

    /// Removes the file if `path` still has the same device and inode.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Removal fails if the file is already gone or the directory is no longer writable. This function can
            // correct neither cause.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the remedy for a socket's failure at `path`, as a suffix for the system's error text.
#[must_use]
pub fn hint(cause: &io::Error, path: &Path) -> String {
    let (parent, user) = (path.parent().unwrap_or(path), geteuid());
    let directory = parent.display();
    match cause.kind() {
        io::ErrorKind::NotFound => format!("; create the directory {directory}"),
        io::ErrorKind::PermissionDenied => {
            let owner = fs::metadata(parent).map(|found| found.uid()).ok().filter(|owner| *owner != user.as_raw());
            // If the directory contains files, other programs may depend on the directory's owner.
            let is_empty = fs::read_dir(parent).is_ok_and(|mut files| files.next().is_none());
            let cure = if is_empty {
                format!("run \"rmdir {directory}\" if no daemon uses it, or \"chown {user} {directory}\"")
            } else {
                "choose a directory of this user".to_owned()
            };
            let cure = owner.map(|owner| format!(", which belongs to uid {owner}: {cure}"));
            format!(
                "; the user of this process (uid {user}) must be able to write to the directory {directory}{}",
                cure.unwrap_or_default()
            )
        }
        _ => String::new(),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_it_is_made_only_the_owner_may_use_it_and_another_file_is_not_given_away() {
        let directory = std::env::temp_dir().join(format!("ofr-made-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("a.sock");
        let _listener = listen_private(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (precious, link) = (directory.join("precious"), directory.join("link"));
        fs::write(&precious, "text").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        for path in [&precious, &link] {
            assert!(matches!(give(path, SocketRights { mode: 0o666, group: None }), Err(MakeError::System { .. })));
        }
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn only_an_empty_directory_of_another_user_is_to_be_removed_or_given_away() {
        let directory = std::env::temp_dir().join(format!("ofr-hint-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("a.sock");
        assert!(may_create(&path).is_ok());
        assert!(matches!(may_create(&path.join("b")), Err(MakeError::System { .. })));
        if geteuid().is_root() && std::os::unix::fs::chown(&directory, Some(12_345), None).is_ok() {
            let hint = || hint(&io::ErrorKind::PermissionDenied.into(), &path);
            assert!(
                hint().contains("belongs to uid 12345: run \"rmdir ") && hint().contains("\"chown 0 "),
                "{}",
                hint()
            );
            fs::write(directory.join("precious"), "").unwrap();
            assert!(hint().ends_with("belongs to uid 12345: choose a directory of this user"), "{}", hint());
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_place_tells_who_is_there_and_a_file_goes_only_while_it_is_the_one_that_was_made() {
        let directory = std::env::temp_dir().join(format!("ofr-place-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("a.sock");
        assert_eq!(occupant(&path).unwrap(), Occupant::Nobody);
        let listener = UnixListener::bind(&path).unwrap();
        let first = SocketFile::new(&path, &path).unwrap();
        assert_eq!(occupant(&path).unwrap(), Occupant::Listener);
        drop(listener);
        assert_eq!(occupant(&path).unwrap(), Occupant::Dead);
        fs::rename(&path, directory.join("aside")).unwrap();
        fs::write(&path, "not a socket").unwrap();
        assert_eq!(occupant(&path).unwrap(), Occupant::NoSocket);
        drop(first);
        assert!(path.exists(), "another has taken its place");
        SocketFile::new(&path, &path).unwrap().remove();
        assert!(!path.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}

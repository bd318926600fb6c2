//! The socket that programs attach to. One daemon at a time serves it. A daemon takes it over from a dead one, and removes it on an orderly exit.
//!
//! ```text
//!   <folder>/isthmus.lock   held (flock) by the daemon that serves the socket, for as long as it lives
//!   <folder>/isthmus.sock   appears ready to use: bound beside, then renamed over what a dead daemon left
//! ```

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use isthmus_layout::reason::Reason;
use isthmus_platform::folder::{self, FolderError, FolderProblem, Purpose};
use isthmus_platform::seqpacket;
use rustix::fs::Mode;
use rustix::io::Errno;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The reason why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error("{}: {}", path.display(), Reason::DaemonSocketInUse.summary())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Others could put their own socket there.
    #[error("{}: {} ({problem})", path.display(), Reason::SocketUntrusted.summary())]
    Untrusted {
        /// The folder, or one on the path to it.
        path: PathBuf,
        /// The way by which another user reaches the socket.
        problem: FolderProblem,
    },
    /// The system refused.
    #[error("{operation} {path}: {source}")]
    Refused {
        /// The operation that failed.
        operation: &'static str,
        /// The path that the operation was applied to.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl SocketError {
    /// The entry in the table of reasons, if there is one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::InUse { .. } => Some(Reason::DaemonSocketInUse),
            Self::Untrusted { .. } => Some(Reason::SocketUntrusted),
            Self::Refused { .. } => None,
        }
    }

    fn refused(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Refused { operation, path: path.to_owned(), source }
    }
}

/// The users that can connect at all, before the policy is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAccess {
    /// The daemon's own user.
    OwnUser,
    /// All users; the policy decides.
    AllUsers,
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    files: Option<SocketFiles>,
}

/// The files that are removed when the listener is dropped.
#[derive(Debug)]
struct SocketFiles {
    path: PathBuf,
    lock_path: PathBuf,
    /// The folder, if this daemon created it.
    directory: Option<PathBuf>,
    _lock: File,
}

impl Listener {
    /// Listens at `path`.
    pub fn open(path: &Path, access: SocketAccess) -> Result<Self, SocketError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let is_created = create_directory(directory, access)?;
        let lock_path = path.with_extension("lock");
        let in_use = || SocketError::InUse { path: path.to_owned() };
        let lock = lock(&lock_path)?.ok_or_else(in_use)?;
        // A daemon that answers here without the lock is of another kind, or was started by systemd.
        if matches!(seqpacket::connect(path), Ok(_) | Err(Errno::AGAIN)) {
            return Err(in_use());
        }
        let socket = bind(path, access)?;
        let files = SocketFiles {
            path: path.to_owned(),
            lock_path,
            directory: is_created.then(|| directory.to_owned()),
            _lock: lock,
        };
        Ok(Self { socket, files: Some(files) })
    }

    /// Wraps a socket that another process has opened. Its files are not removed.
    pub fn inherited(socket: OwnedFd) -> Self {
        Self { socket, files: None }
    }

    /// Accepts the next connection.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        seqpacket::accept(&self.socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(files) = &self.files else { return };
        // The lock file is removed last, while the lock is held, so no other daemon can have taken the socket over.
        let _ = std::fs::remove_file(&files.path);
        let _ = std::fs::remove_file(&files.lock_path);
        if let Some(directory) = &files.directory {
            let _ = std::fs::remove_dir(directory); // Unless something else is in it.
        }
    }
}

/// Creates the folder of the socket if necessary, and checks that other users cannot write to it. The daemon of root checks all folders above
/// it as well, because it changes the modes of files by their paths. Returns whether the folder was created.
fn create_directory(directory: &Path, access: SocketAccess) -> Result<bool, SocketError> {
    let mode = if access == SocketAccess::OwnUser { 0o700 } else { 0o755 };
    let (folder, is_created) = match folder::open(directory, Purpose::Make(Mode::from_raw_mode(mode))) {
        Ok(opened) => opened,
        Err(FolderError { path, reason: FolderProblem::Refused(errno) }) => {
            return Err(SocketError::refused("opening", &path)(errno.into()));
        }
        Err(FolderError { path, reason: problem @ (FolderProblem::NotAFolder | FolderProblem::TooManyLinks) }) => {
            let text = format!("{problem}; move it, or set `daemon.socket`");
            return Err(SocketError::refused("opening", &path)(io::Error::other(text)));
        }
        Err(FolderError { path, reason: problem }) => return Err(SocketError::Untrusted { path, problem }),
    };
    let found = File::from(folder).metadata().map_err(SocketError::refused("looking at", directory))?;
    let problem = match untrusted(&found) {
        None => return Ok(is_created),
        Some(problem) => problem,
    };
    Err(SocketError::Untrusted { path: directory.to_owned(), problem })
}

/// Returns the way by which users other than this one and root can write to a folder.
fn untrusted(found: &Metadata) -> Option<FolderProblem> {
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&found.uid()) {
        Some(FolderProblem::OwnedBy { owner: found.uid() })
    } else if found.mode() & 0o022 != 0 {
        Some(FolderProblem::WritableByOthers { mode: found.mode() & 0o7777 })
    } else {
        None
    }
}

/// Returns whether only this user and root can write to a folder.
pub(crate) fn is_trusted(directory: &Path) -> io::Result<bool> {
    let found = std::fs::symlink_metadata(directory)?;
    Ok(found.is_dir() && untrusted(&found).is_none())
}

/// The permissions of the lock file.
const LOCK_MODE: u32 = 0o600;

/// Takes the lock. Returns `None` if another process holds it. The previous holder may remove the file just before we lock it, so the function
/// retries unless the path still names the locked file. No other user may open the file, because an open file can be locked: that user could
/// keep every daemon from starting.
fn lock(path: &Path) -> Result<Option<File>, SocketError> {
    loop {
        let file = File::options().write(true).create(true).truncate(false).mode(LOCK_MODE).open(path);
        let file = file.map_err(SocketError::refused("opening", path))?;
        // The file may be older, and the mask of the process does not matter.
        let own = std::fs::Permissions::from_mode(LOCK_MODE);
        file.set_permissions(own).map_err(SocketError::refused("restricting", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(SocketError::refused("locking", path)(error)),
        }
        let ours = file.metadata().map_err(SocketError::refused("looking at", path))?;
        if std::fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(Some(file));
        }
    }
}

/// Refuses to replace anything but a socket: a wrong path in the configuration must not cost a file.
fn check_replaceable(path: &Path) -> Result<(), SocketError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let text = "the file is no socket, so it is not replaced; move it, or set `daemon.socket`";
            Err(SocketError::refused("opening", path)(io::Error::new(io::ErrorKind::AlreadyExists, text)))
        }
        _ => Ok(()),
    }
}

/// Binds the socket at a temporary path and renames it, so that it has its mode and is listening before it is visible.
fn bind(path: &Path, access: SocketAccess) -> Result<OwnedFd, SocketError> {
    let temporary = path.with_extension("new");
    for path in [path, &temporary] {
        check_replaceable(path)?;
    }
    let _ = std::fs::remove_file(&temporary); // A daemon may have died between binding and renaming.
    let mode = if access == SocketAccess::OwnUser { 0o600 } else { 0o666 };
    let bound = (|| {
        let socket = seqpacket::listen(&temporary, BACKLOG)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&temporary, path)?;
        Ok(socket)
    })();
    bound.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        SocketError::refused("binding", path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn allows_one_daemon_and_removes_its_files() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("isthmus");
        let path = directory.join("isthmus.sock");
        let first = Listener::open(&path, SocketAccess::OwnUser).unwrap();
        assert_eq!(names(&directory), ["isthmus.lock", "isthmus.sock"]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!([mode(&path), mode(&path.with_extension("lock"))], [0o600; 2]);
        assert_eq!(Listener::open(&path, SocketAccess::OwnUser).unwrap_err().reason(), Some(Reason::DaemonSocketInUse));
        drop(first);
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn takes_over_the_socket_of_a_dead_daemon() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("isthmus.sock");
        drop(seqpacket::listen(&path, 1).unwrap());
        std::fs::write(path.with_extension("lock"), "").unwrap();
        let lock = path.with_extension("lock");
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
        let listener = Listener::open(&path, SocketAccess::AllUsers).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!([mode(&path), mode(&lock)], [0o666, 0o600]);
        seqpacket::connect(&path).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn replaces_no_file_that_is_no_socket() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("isthmus.sock");
        for at in [path.clone(), path.with_extension("new")] {
            std::fs::write(&at, "a file").unwrap();
            let refused = Listener::open(&path, SocketAccess::OwnUser).unwrap_err().to_string();
            assert!(refused.contains("the file is no socket"), "{refused}");
            assert_eq!(std::fs::read_to_string(&at).unwrap(), "a file");
            std::fs::remove_file(&at).unwrap();
        }
        Listener::open(&path, SocketAccess::OwnUser).unwrap();
    }

    #[test]
    fn refuses_a_directory_writable_by_others() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("open");
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Listener::open(&directory.join("isthmus.sock"), SocketAccess::OwnUser).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::SocketUntrusted));
        assert!(refused.to_string().contains("(others can write to it (mode 0777))"), "{refused}");
    }

    /// The user above could put a link to another file in the place of the folder, while root changes modes by path.
    #[test]
    fn root_refuses_a_directory_below_one_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (above, directory) = (root.path().join("above"), root.path().join("above/below"));
        std::fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::chown(&above, Some(4711), None).unwrap();
        for directory in [directory, above.join("new")] {
            let refused = Listener::open(&directory.join("isthmus.sock"), SocketAccess::AllUsers).unwrap_err();
            assert_eq!(refused.reason(), Some(Reason::SocketUntrusted));
            assert!(refused.to_string().starts_with(&format!("{}: ", above.display())), "{refused}");
        }
        assert_eq!((names(&above), names(&above.join("below"))), (vec!["below".to_owned()], vec![]));
    }

    #[test]
    fn directory_that_is_a_file_is_named_as_such() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused = Listener::open(&file.join("isthmus.sock"), SocketAccess::OwnUser).unwrap_err();
        assert_eq!(refused.reason(), None);
        assert!(refused.to_string().contains("the path is not a folder; move it, or set `daemon.socket`"), "{refused}");
    }
}

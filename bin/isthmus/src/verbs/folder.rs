//! Folders of files in which another user may have a hand: opened, read and replaced without being led elsewhere.
//!
//! ```text
//! "/" ─▶ run ─▶ isthmus ─▶ verbs      each step is one name below a folder that is open
//!                            └ sys      read, or replaced as a whole by a folder that was written beside it
//! ```
//!
//! * The way to the folder is that of [`isthmus_platform::folder`]. Below the folder, no step follows any link.
//! * What is read has limits, because another user may have written it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use isthmus_platform::folder::{self, FolderError, FolderProblem, Purpose};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, mkdirat, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// The contents of files, by path.
pub(super) type Files = BTreeMap<PathBuf, String>;

/// The maximum number of files and folders that are read.
const ENTRIES_MAX: usize = 4096;

/// The maximum number of bytes of a file that is read.
const FILE_BYTES_MAX: usize = 4096;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The modes of what is made: any program may look for devices.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// A folder that is open.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens a folder for reading.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self(folder::open(path, Purpose::Read).map_err(refused)?.0))
    }

    /// Opens a folder for writing. Makes what is missing of its path.
    pub(super) fn make(path: &Path) -> Result<Self> {
        Ok(Self(folder::open(path, Purpose::Make(FOLDER_MODE)).map_err(refused)?.0))
    }

    /// Opens a folder in this one.
    pub(super) fn below(&self, name: &str) -> Result<Self> {
        Ok(Self(openat(&self.0, name, FOLDER, Mode::empty())?))
    }

    /// Reads all files below the folder.
    pub(super) fn read(self) -> Result<Files> {
        let (mut files, mut folders, mut entries) = (Files::new(), vec![(PathBuf::new(), self)], 0);
        while let Some((of, folder)) = folders.pop() {
            for name in folder.names()? {
                entries += 1;
                ensure!(entries <= ENTRIES_MAX, "there are more than {ENTRIES_MAX} files");
                let path = of.join(&name);
                let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let found = openat(&folder.0, &name, flags, Mode::empty());
                let found = found.with_context(|| format!("cannot open {}", path.display()))?;
                match kind(&fstat(&found)?) {
                    FileType::Directory => folders.push((path, Self(found))),
                    FileType::RegularFile => drop(files.insert(path, text(found)?)),
                    _ => bail!("{} is neither a file nor a folder", path.display()),
                }
            }
        }
        Ok(files)
    }

    /// Replaces a folder in this one, all at once: programs find the old files or the new ones, and never a part of both.
    pub(super) fn replace(&self, name: &str, files: &Files) -> Result<()> {
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        // After the exchange, the old folder has this name.
        let temporary = format!(".new-{:016x}", u64::from_ne_bytes(number));
        mkdirat(&self.0, &temporary, FOLDER_MODE)?;
        let done = self.below(&temporary).and_then(|new| {
            new.write(files)?;
            match renameat_with(&self.0, &temporary, &self.0, name, RenameFlags::EXCHANGE) {
                Err(Errno::NOENT) => renameat_with(&self.0, &temporary, &self.0, name, RenameFlags::NOREPLACE),
                exchanged => exchanged,
            }
            .with_context(|| format!("cannot replace {name}"))
        });
        match remove(self.0.as_fd(), OsStr::new(&temporary)) {
            Ok(()) | Err(Errno::NOENT) => done,
            Err(error) => done.and(Err(error).with_context(|| format!("cannot remove {temporary}"))),
        }
    }

    /// Writes files into the folder, which has none of them.
    fn write(&self, files: &Files) -> Result<()> {
        fchmod(&self.0, FOLDER_MODE)?; // Whatever the umask is.
        for (path, text) in files {
            self.write_file(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn write_file(&self, path: &Path, text: &str) -> Result<()> {
        let name = path.file_name().context("the path names no file")?;
        let mut folder = Self(openat(&self.0, ".", FOLDER, Mode::empty())?);
        for part in path.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(part) = part else { bail!("the path leads out of the folder") };
            match mkdirat(&folder.0, part, FOLDER_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = Self(openat(&folder.0, part, FOLDER, Mode::empty())?);
            fchmod(&folder.0, FOLDER_MODE)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder.0, name, flags, FILE_MODE)?);
        fchmod(&file, FILE_MODE)?;
        Ok(file.write_all(text.as_bytes())?)
    }

    fn names(&self) -> Result<Vec<OsString>> {
        Ok(names(self.0.as_fd()).take(ENTRIES_MAX + 1).collect::<Result<_, _>>()?)
    }
}

/// The names in a folder, without `.` and `..`.
fn names(folder: impl AsFd) -> impl Iterator<Item = Result<OsString, Errno>> {
    let (entries, error) = match Dir::read_from(folder) {
        Ok(entries) => (Some(entries), None),
        Err(error) => (None, Some(Err(error))),
    };
    let names =
        entries.into_iter().flatten().map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()));
    error.into_iter().chain(names).filter(|name| !matches!(name.as_ref().map(|name| name.as_bytes()), Ok(b"." | b"..")))
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn text(file: OwnedFd) -> Result<String> {
    let mut text = String::new();
    File::from(file).take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    ensure!(text.len() <= FILE_BYTES_MAX, "a file has more than {FILE_BYTES_MAX} bytes");
    Ok(text)
}

/// Removes a file, a link, or a folder with all below it.
fn remove(folder: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(&folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    let below = openat(&folder, name, FOLDER, Mode::empty())?;
    for name in names(&below).collect::<Result<Vec<_>, _>>()? {
        remove(&below, &name)?;
    }
    unlinkat(&folder, name, AtFlags::REMOVEDIR)
}

/// Returns an error with its remedy for a folder of `isthmus verbs enable`.
fn refused(error: FolderError) -> anyhow::Error {
    const REMEDY: &str =
        "name a folder with --dir that, with all above it, belongs to root and is writable by root alone";
    match error.reason {
        FolderProblem::OwnedBy { owner } => {
            anyhow!("{error}: run this as that user (`sudo -u '#{owner}' isthmus verbs enable`), or {REMEDY}")
        }
        FolderProblem::WritableByOthers { .. } => anyhow!("{error}: {REMEDY}"),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use super::*;

    /// A user that is not root.
    const OTHER: u32 = 4711;

    fn files(contents: &[(&str, &str)]) -> Files {
        contents.iter().map(|(path, text)| ((*path).into(), (*text).to_owned())).collect()
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
            && fs::metadata("/").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
    }

    #[test]
    fn folder_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = || Folder::make(&scratch.path().join("a/b")).unwrap();
        for contents in [files(&[("x/y", "1"), ("z", "2")]), files(&[("x/q/r", "3")])] {
            folder().replace("sys", &contents).unwrap();
            assert_eq!(folder().below("sys").unwrap().read().unwrap(), contents);
            assert_eq!(fs::read_dir(scratch.path().join("a/b")).unwrap().count(), 1);
        }
        let mode = |path: &str| fs::metadata(scratch.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a/b/sys"), mode("a/b/sys/x"), mode("a/b/sys/x/q/r")), (0o755, 0o755, 0o644));
    }

    #[test]
    fn path_that_leaves_the_folder_is_not_written() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::make(&scratch.path().join("a")).unwrap();
        for path in ["../x", "y/../../x", "/x", ".."] {
            assert!(folder.replace("sys", &files(&[(path, "1")])).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(scratch.path().join("a")).unwrap().count(), 0);
    }

    #[test]
    fn planted_link_is_neither_read_nor_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let (sys, victim) = (scratch.path().join("verbs/sys"), scratch.path().join("victim"));
        fs::create_dir_all(sys.join("class")).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "victim").unwrap();
        let is_untouched = || {
            let names: Vec<_> = fs::read_dir(&victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names == ["file"] && fs::read_to_string(victim.join("file")).unwrap() == "victim"
        };
        let folder = || Folder::make(&scratch.path().join("verbs")).unwrap();
        for (link, target) in [("class/folder", &victim), ("class/file", &victim.join("file"))] {
            fs::remove_dir_all(sys.join("class")).unwrap();
            fs::create_dir(sys.join("class")).unwrap();
            symlink(target, sys.join(link)).unwrap();
            let error = Folder::open(&sys).unwrap().read().unwrap_err();
            assert!(format!("{error:#}").contains(link), "{error:#}");
            folder().replace("sys", &files(&[("class/folder/new", "1"), ("class/file", "2")])).unwrap();
            assert!(is_untouched() && !sys.join(link).is_symlink(), "{link}");
        }
        fs::remove_dir_all(&sys).unwrap();
        symlink(&victim, &sys).unwrap();
        assert!(folder().below("sys").is_err());
        folder().replace("sys", &files(&[("new", "1")])).unwrap();
        assert!(is_untouched() && !sys.is_symlink());
    }

    #[test]
    fn pipes_long_files_and_many_files_are_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let read = || Folder::open(scratch.path()).unwrap().read().map_err(|error| format!("{error:#}"));
        let path = scratch.path().join("x");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(read().unwrap_err().contains("neither a file nor a folder"));
        fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read().unwrap_err().contains("more than 4096 bytes"));
        fs::remove_file(&path).unwrap();
        for number in 0..=ENTRIES_MAX {
            fs::write(scratch.path().join(number.to_string()), "").unwrap();
        }
        assert!(read().unwrap_err().contains("more than 4096 files"));
    }

    #[test]
    fn own_link_on_the_way_is_followed_and_one_of_another_user_is_not() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("real")).unwrap();
        let link = scratch.path().join("link");
        symlink("real/../real", &link).unwrap();
        Folder::make(&link.join("verbs")).unwrap().replace("sys", &files(&[("x", "1")])).unwrap();
        assert!(scratch.path().join("real/verbs/sys/x").is_file());
        if !is_root() {
            return;
        }
        lchown(&link, Some(OTHER), None).unwrap();
        for opened in [Folder::make(&link.join("other")), Folder::open(&link.join("verbs"))] {
            let error = format!("{:#}", opened.unwrap_err());
            assert!(
                error.contains(&format!("{}: the path is a symbolic link of user {OTHER}", link.display())),
                "{error}"
            );
        }
        assert_eq!(fs::read_dir(scratch.path().join("real")).unwrap().count(), 1);
        symlink("loop", scratch.path().join("loop")).unwrap();
        assert!(Folder::open(&scratch.path().join("loop")).is_err());
    }

    #[test]
    fn root_writes_only_where_root_alone_can_write() {
        for reason in [FolderProblem::OwnedBy { owner: OTHER }, FolderProblem::WritableByOthers { mode: 0o777 }] {
            let error = refused(FolderError { path: "/x".into(), reason }).to_string();
            let names_user = error.contains("sudo -u '#4711'");
            assert!(
                error.contains("--dir") && names_user == (reason == FolderProblem::OwnedBy { owner: OTHER }),
                "{error}"
            );
        }
        if !is_root() {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let daemon = scratch.path().join("daemon");
        fs::create_dir(&daemon).unwrap();
        std::os::unix::fs::chown(&daemon, Some(OTHER), None).unwrap();
        let error = format!("{:#}", Folder::make(&daemon.join("verbs")).unwrap_err());
        assert!(error.starts_with(&format!("{}: the folder belongs to user {OTHER}", daemon.display())), "{error}");
        assert_eq!(fs::read_dir(&daemon).unwrap().count(), 0, "nothing is written");
        assert!(Folder::open(&daemon).is_ok(), "reading is harmless");
        std::os::unix::fs::chown(&daemon, Some(0), None).unwrap();
        fs::set_permissions(&daemon, Permissions::from_mode(0o777)).unwrap();
        assert!(Folder::make(&daemon.join("verbs")).is_err());
    }
}

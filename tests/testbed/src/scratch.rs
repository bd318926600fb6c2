//! A private directory for one test.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory of mode 0700 below the system's temporary directory, removed with its content when dropped.
///
/// Its path is short (`/tmp/isthmus-XXXXXX`): the path of a socket has 107 bytes.
#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A new, empty directory that only this user can enter.
    pub fn new() -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("isthmus-").permissions(Permissions::from_mode(0o700)).tempdir()?;
        Ok(Self { dir })
    }

    /// Makes a folder like [`new`](Self::new) that other users can enter (0755), so that sandboxes of other owners can get its contents.
    pub fn shared() -> io::Result<Self> {
        let scratch = Self::new()?;
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755))?;
        Ok(scratch)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A name inside.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Makes a directory inside, with the same mode as the whole.
    pub fn dir(&self, name: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = self.join(name);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::metadata(self.path())?.permissions())?;
        Ok(path)
    }

    /// Writes a file inside.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Everything inside, directories included, sorted.
    pub fn content(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_private_and_disappears() {
        let scratch = Scratch::new().expect("a directory");
        let mode = fs::metadata(scratch.path()).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let file = scratch.write("file", "content").expect("a file");
        let dir = scratch.dir("run").expect("a directory inside");
        assert_eq!(scratch.content().expect("content"), [file.clone(), dir]);
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists() && !file.exists());
    }
}

//! Finds the project's own programs, built from the sources the test was built from.
//!
//! Looked for in this order: `$ISTHMUS_BIN_DIR` (to test what was installed), `$CARGO_BIN_EXE_<name>`, then beside the test
//! executable, where `cargo build` with the same profile puts it; it is run once per process and program, so that a test
//! never meets a stale one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A program of the project could not be found or built.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// cargo did not build it.
    #[error("cargo build of {name}: {stderr}")]
    Build {
        /// Name of the binary.
        name: String,
        /// Standard error of cargo.
        stderr: String,
    },
    /// The binary is not where it should be.
    #[error("{name} is not at {}", path.display())]
    Missing {
        /// Name of the binary.
        name: String,
        /// The path at which it should be.
        path: PathBuf,
    },
    /// Something on the way failed.
    #[error("finding {name}")]
    System {
        /// Name of the binary.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The path of the program `name` of the workspace's package `package`.
pub fn binary(package: &str, name: &str) -> Result<PathBuf, BinaryError> {
    built(package, Kind::Bin, name)
}

/// The path of the example `name` of the workspace's package `package`.
pub fn example(package: &str, name: &str) -> Result<PathBuf, BinaryError> {
    built(package, Kind::Example, name)
}

/// The kind of a target of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bin,
    Example,
}

impl Kind {
    fn option(self) -> &'static str {
        match self {
            Self::Bin => "--bin",
            Self::Example => "--example",
        }
    }

    /// The path of a target below the folder of its profile.
    fn path(self, name: &str) -> PathBuf {
        match self {
            Self::Bin => name.into(),
            Self::Example => Path::new("examples").join(name),
        }
    }
}

fn built(package: &str, kind: Kind, name: &str) -> Result<PathBuf, BinaryError> {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner); // Held while building: others wait for that.
    if let Some(path) = found.get(name) {
        return Ok(path.clone());
    }
    let path = find(package, kind, name)?;
    if !path.is_file() {
        return Err(BinaryError::Missing { name: name.into(), path });
    }
    found.insert(name.into(), path.clone());
    Ok(path)
}

fn find(package: &str, kind: Kind, name: &str) -> Result<PathBuf, BinaryError> {
    if let Some(dir) = std::env::var_os("ISTHMUS_BIN_DIR") {
        return Ok(Path::new(&dir).join(kind.path(name)));
    }
    if let Some(path) = std::env::var_os(format!("CARGO_BIN_EXE_{name}")) {
        return Ok(path.into());
    }
    let system = |source| BinaryError::System { name: name.into(), source };
    let executable = std::env::current_exe().map_err(system)?;
    let place = Place::of(&executable)
        .ok_or_else(|| BinaryError::Missing { name: name.into(), path: executable.with_file_name(name) })?;
    let path = place.folder.join(kind.path(name));
    // Run by cargo, we let it bring the program up to date. Run by hand, we take what is there.
    let cargo = match std::env::var_os("CARGO") {
        Some(cargo) => PathBuf::from(cargo),
        None if path.is_file() => return Ok(path),
        None => PathBuf::from("cargo"),
    };
    let output = place.build(cargo, package, kind, name).output().map_err(system)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(BinaryError::Build { name: name.into(), stderr });
    }
    Ok(path)
}

/// The path of an executable in a target directory: `TARGET[/TRIPLE]/PROFILE[/deps|/examples]/EXECUTABLE`.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    target: PathBuf,
    triple: Option<String>,
    profile: String,
    folder: PathBuf,
}

impl Place {
    fn of(executable: &Path) -> Option<Self> {
        let mut folder = executable.parent()?;
        if folder.ends_with("deps") || folder.ends_with("examples") {
            folder = folder.parent()?;
        }
        let profile = match folder.file_name()?.to_str()? {
            "debug" => "dev",
            profile => profile,
        };
        let above = folder.parent()?;
        let is_target = |dir: &Path| dir.join(".rustc_info.json").is_file() || dir.join("CACHEDIR.TAG").is_file();
        let (target, triple) = match above.parent() {
            Some(further) if !is_target(above) && is_target(further) => {
                (further, Some(above.file_name()?.to_str()?.to_owned()))
            }
            _ => (above, None),
        };
        Some(Self { target: target.into(), triple, profile: profile.into(), folder: folder.into() })
    }

    fn build(&self, cargo: PathBuf, package: &str, kind: Kind, name: &str) -> Command {
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--package", package, kind.option(), name, "--profile", &self.profile]);
        command.arg("--target-dir").arg(&self.target);
        if let Some(triple) = &self.triple {
            command.args(["--target", triple]);
        }
        command.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        command.stdin(Stdio::null());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_reads_the_layout_of_a_target_directory() {
        let scratch = crate::Scratch::new().expect("a directory");
        scratch.write("CACHEDIR.TAG", "").expect("a file");
        let target = scratch.path();
        let place = Place::of(&target.join("debug/deps/suite-1234")).expect("a place");
        assert_eq!(place.target, target);
        assert_eq!((place.triple.as_deref(), place.profile.as_str()), (None, "dev"));
        assert_eq!(place.folder, target.join("debug"));
        let place = Place::of(&target.join("x86_64-unknown-linux-musl/release/isthmus-bench")).expect("a place");
        assert_eq!(place.target, target);
        assert_eq!(place.triple.as_deref(), Some("x86_64-unknown-linux-musl"));
        assert_eq!(place.profile, "release");
    }
}

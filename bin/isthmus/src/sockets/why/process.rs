//! A process, and whether it uses the library of sockets.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use isthmus_layout::environment::Variable;
use isthmus_layout::sockets::off_reason;
use serde::Serialize;

use super::super::LIBRARY;
use crate::program_file::{Linking, SECURE, STATIC, other_c_library};

/// The beginning of the file names of all versions of the library.
const LIBRARY_STEM: &str = "libisthmus-sockets";

/// The entry of the auxiliary vector that is not 0 for a program with the rights of its file.
const AT_SECURE: u64 = 23;

/// A process at one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) uid: Option<u32>,
    /// The time of its start, in clock ticks since the host was booted.
    #[serde(skip)]
    pub(super) started: Option<u64>,
    pub(super) library: Library,
    /// Why the process does not use the library.
    pub(super) obstacle: Option<Obstacle>,
}

/// The state of the library in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Library {
    Loaded,
    SwitchedOff,
    NotLoaded,
    /// The process cannot be examined.
    Unknown,
}

/// Something that keeps a process from using the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Obstacle {
    pub(super) cause: String,
    pub(super) remedy: String,
}

impl Obstacle {
    fn new(cause: impl Into<String>, remedy: &str) -> Option<Self> {
        Some(Self { cause: printable(&cause.into()), remedy: remedy.to_owned() })
    }
}

/// The files of a process in /proc, read once.
#[derive(Debug)]
struct Facts {
    is_mapped: bool,
    environment: Vec<u8>,
    is_secure: bool,
    executable: PathBuf,
    linking: Option<Linking>,
}

impl Process {
    /// Examines a process.
    pub(super) fn examine(pid: u32) -> Self {
        let read = |name: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let uid =
            read("status").lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)?.parse().ok());
        let (library, obstacle) = match Facts::read(pid) {
            Ok(facts) => facts.library(),
            Err(error) => (
                Library::Unknown,
                Obstacle::new(
                    format!("the process cannot be examined: {error}"),
                    "Run `isthmus why` as root, or as the user of the process.",
                ),
            ),
        };
        let started = start_of(&read("stat"));
        Self { pid, program: printable(read("comm").trim_end()), uid, started, library, obstacle }
    }

    pub(super) fn name(&self) -> String {
        format!("{} ({})", self.program, self.pid)
    }
}

/// Returns the time of the start from the text of `/proc/PID/stat`: its field 22. The name, field 2, stands in brackets and may have any bytes.
fn start_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()
}

impl Facts {
    fn read(pid: u32) -> io::Result<Self> {
        let path = |name: &str| format!("/proc/{pid}/{name}");
        let maps = fs::read(path("maps"))?;
        let file = |line: &[u8]| {
            line.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(LIBRARY_STEM.as_bytes()))
        };
        Ok(Self {
            is_mapped: maps.split(|&byte| byte == b'\n').any(file),
            environment: fs::read(path("environ"))?,
            is_secure: is_secure(&fs::read(path("auxv"))?),
            executable: fs::read_link(path("exe"))?,
            linking: Linking::read(&File::open(path("exe"))?)?,
        })
    }

    /// Returns the value of a variable at the start of the process.
    fn variable(&self, name: &str) -> Option<&[u8]> {
        let assignments = self.environment.split(|&byte| byte == 0);
        assignments.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).next()
    }

    /// Decides the state of the library. What no variable can change comes first.
    fn library(&self) -> (Library, Option<Obstacle>) {
        if self.is_mapped {
            let value = |of: Variable| self.variable(of.name).map(|text| String::from_utf8_lossy(text).into_owned());
            return match off_reason(value) {
                Some(why) => {
                    let cause = format!("{why}, which switches {LIBRARY} off");
                    (Library::SwitchedOff, Obstacle::new(cause, "Start the program without this variable."))
                }
                None => (Library::Loaded, None),
            };
        }
        (Library::NotLoaded, self.why_not_loaded())
    }

    fn why_not_loaded(&self) -> Option<Obstacle> {
        if self.linking == Some(Linking::Static) {
            return Obstacle::new(
                format!("{} {STATIC}", self.executable.display()),
                "Use a build of the program that is linked dynamically with glibc.",
            );
        }
        if let Some(linking) = &self.linking
            && let Some(cause) = other_c_library(&self.executable, linking, LIBRARY)
        {
            return Obstacle::new(cause, "Use a 64-bit build of the program for glibc.");
        }
        if self.is_secure {
            return Obstacle::new(
                format!("it {SECURE}"),
                "Remove these bits and capabilities from the file, and start the program as the user that it needs.",
            );
        }
        let preload = self.variable("LD_PRELOAD").unwrap_or_default();
        if preload.windows(LIBRARY_STEM.len()).any(|part| part == LIBRARY_STEM.as_bytes()) {
            let list = std::ffi::OsStr::from_bytes(preload).display();
            return Obstacle::new(
                format!("LD_PRELOAD is {list}, but the dynamic linker did not load {LIBRARY}"),
                "See its message on the standard error of the program; in a container, the file must exist at this path.",
            );
        }
        Obstacle::new(
            format!("LD_PRELOAD did not name {LIBRARY} when it started"),
            "Start it with `isthmus run --with sockets`.",
        )
    }
}

/// Replaces control characters: names of programs and files may have any, and terminals obey them.
pub(super) fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Reads the auxiliary vector: pairs of words.
fn is_secure(auxv: &[u8]) -> bool {
    let (words, _) = auxv.as_chunks::<8>();
    words.chunks_exact(2).any(|pair| u64::from_ne_bytes(pair[0]) == AT_SECURE && u64::from_ne_bytes(pair[1]) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(environment: &str, linker: &str) -> Facts {
        Facts {
            is_mapped: false,
            environment: environment.replace(' ', "\0").into_bytes(),
            is_secure: false,
            executable: "/opt/program".into(),
            linking: Some(Linking::Dynamic(linker.into())),
        }
    }

    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn library_that_is_mapped_is_used_unless_it_is_switched_off() {
        let state = |environment: &str| Facts { is_mapped: true, ..facts(environment, GLIBC) }.library();
        assert_eq!(state("ISTHMUS_SOCKETS=on"), (Library::Loaded, None));
        assert_eq!(state("A=ISTHMUS_SOCKETS=off"), (Library::Loaded, None));
        for environment in ["A=1 ISTHMUS_SOCKETS=off", "ISTHMUS_SOCKETS=0 B=2", "ISTHMUS_SOCKETS=of"] {
            assert_eq!(state(environment).0, Library::SwitchedOff, "{environment}");
        }
    }

    #[test]
    fn obstacle_that_no_variable_changes_comes_first() {
        let cause = |facts: Facts| {
            assert_eq!(facts.library().0, Library::NotLoaded);
            facts.library().1.expect("an obstacle").cause
        };
        let preloaded = "LD_PRELOAD=/opt/libisthmus-sockets.so";
        let with = |linking| cause(Facts { linking: Some(linking), is_secure: true, ..facts(preloaded, GLIBC) });
        assert!(with(Linking::Static).contains("static executable"));
        assert!(with(Linking::OtherMachine).contains("no 64-bit"));
        assert!(with(Linking::Dynamic("/lib/ld-musl-x86_64.so.1".into())).contains("ld-musl"));
        assert!(with(Linking::Dynamic(GLIBC.into())).contains("setuid"));
        assert!(cause(facts(preloaded, GLIBC)).contains("did not load"));
        assert!(cause(facts("LD_PRELOAD=/usr/lib/libx.so", GLIBC)).contains("did not name"));
        assert!(cause(facts("", GLIBC)).contains("did not name"));
    }

    #[test]
    fn auxiliary_vector_says_whether_a_program_is_secure() {
        let vector = |value: u64| [6, 4096, AT_SECURE, value, 0, 0].map(u64::to_ne_bytes).concat();
        assert!(is_secure(&vector(1)) && !is_secure(&vector(0)) && !is_secure(&[]));
    }

    #[test]
    fn own_process_can_be_examined() {
        let own = Process::examine(std::process::id());
        assert_eq!((own.library, own.uid), (Library::NotLoaded, Some(rustix::process::geteuid().as_raw())));
    }
}

//! Sockets: the streams of TCP programs, and the library that gives them to unmodified programs.
//!
//! ```text
//! streams ─▶ isthmus stream list    the daemon's report about streams
//! why ─────▶ isthmus why PID:FD     a TCP connection of any program
//! PROGRAMS ▶ isthmus run            libisthmus-sockets.so
//! ```

mod streams;
mod why;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;

use crate::output::{Outcome, Output};
use crate::program_file::{ProgramFile, other_c_library};
use crate::run::{ProgramCapability, Setting};

pub(crate) use why::why;

/// The library that programs load.
pub(crate) const LIBRARY: &str = "libisthmus-sockets.so";

/// The commands of sockets.
#[derive(Subcommand)]
pub(crate) enum SocketsCommand {
    /// TCP connections between programs of this host that use shared memory.
    #[command(subcommand)]
    Stream(StreamVerb),
}

#[derive(Subcommand)]
pub(crate) enum StreamVerb {
    /// Lists the streams: both programs, the path of each direction, and the bytes that they sent.
    List,
}

impl SocketsCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Stream(StreamVerb::List) => streams::list(output, socket),
        }
    }
}

/// The row of `isthmus run`.
pub(crate) const PROGRAMS: ProgramCapability = ProgramCapability {
    name: "sockets",
    users: "Programs that use TCP",
    library: LIBRARY,
    other_names: &[],
    other_libraries: &[],
    device_file: None,
    settings: |place| Ok(settings(place.folder)),
    unfit,
    doctor: None,
};

/// The library needs glibc. A program that another dynamic linker loads would not start with it. A static program starts, and its
/// children may use the library.
fn unfit(program: &ProgramFile) -> Option<String> {
    other_c_library(&program.path, &program.linking, LIBRARY)
}

fn settings(folder: &Path) -> Vec<Setting> {
    vec![Setting {
        name: "LD_PRELOAD",
        value: folder.join(LIBRARY).to_string_lossy().into_owned(),
        effect: "the library that gives shared memory to TCP connections",
        is_list: true,
    }]
}

//! Sockets: the streams of TCP programs, and the library that gives them to unmodified programs.
//!
//! ```text
//! streams ─▶ isthmus stream list    the daemon's report about streams
//! why ─────▶ isthmus why PID:FD     a TCP connection of any program
//! PROGRAMS ▶ isthmus run --with     libisthmus-sockets.so
//! ```

mod streams;
mod why;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use isthmus_layout::environment::Variable;

use crate::output::{Outcome, Output};
use crate::run::{ProgramCapability, ProgramPlace, Setting};

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
    ///
    /// `shared` and `tcp` count the bytes of a direction since its connection began. After a switch to TCP, bytes by TCP count once the
    /// other end has read them. Bytes that a program sends past the library are not counted.
    List,
}

impl SocketsCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Stream(StreamVerb::List) => streams::list(output, socket),
        }
    }
}

/// The row of `isthmus run`. The capability is off unless it is asked for, because the library may disturb a program.
pub(crate) const PROGRAMS: ProgramCapability = ProgramCapability {
    name: "sockets",
    users: "Programs that use TCP",
    library: LIBRARY,
    other_names: &[],
    other_libraries: &[],
    device_files: &[],
    is_opt_in: true,
    is_in_guests: false,
    settings: |place| match off_reason().filter(|_| place.container.is_none()) {
        Some(why) => Err(why),
        None => Ok(settings(place)),
    },
    unfit: |program| program.unfit(LIBRARY),
    doctor: None,
};

/// Returns why the variables of this process switch the library off, if they do.
pub(crate) fn off_reason() -> Option<String> {
    let value = |variable: Variable| Some(std::env::var_os(variable.name)?.to_string_lossy().into_owned());
    isthmus_layout::sockets::off_reason(value)
}

fn settings(place: &ProgramPlace<'_>) -> Vec<Setting> {
    let library = Setting {
        name: "LD_PRELOAD",
        value: place.folder.join(LIBRARY).to_string_lossy().into_owned(),
        effect: "the library that gives shared memory to TCP connections",
        is_list: true,
    };
    // The runtime refuses to start behind another library, because that might take its place. Ours calls the next definition.
    let sanitizer = || Setting {
        name: "ASAN_OPTIONS",
        value: "verify_asan_link_order=0".to_owned(),
        effect: "lets programs with AddressSanitizer start with the library",
        is_list: true,
    };
    // A container has one set of variables for all its programs, so only what each of them needs.
    [library].into_iter().chain(place.container.is_none().then(sanitizer)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn sanitized_programs_start_behind_the_library() {
        let folder = Path::new("/opt/lib");
        let names = |container| -> Vec<_> {
            settings(&ProgramPlace { folder, socket: None, container }).iter().map(|set| set.name).collect()
        };
        assert_eq!(names(None), ["LD_PRELOAD", "ASAN_OPTIONS"]);
        assert_eq!(names(Some(Path::new("/run"))), ["LD_PRELOAD"]);
    }
}

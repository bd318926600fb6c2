//! The kernel alone, or a daemon and the library.

use std::path::PathBuf;

use isthmus_testbed::{DaemonProcess, Launch, Scratch, binary};
use serde_json::Value;

use crate::{build, timeout};

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// The way by which programs of a test communicate.
#[derive(Debug)]
pub enum Stage {
    /// The kernel's TCP.
    Kernel,
    /// The library, with a daemon. (The folder goes after the daemon.)
    Library(Box<DaemonProcess>, Scratch),
}

impl Stage {
    /// Starts a daemon for programs with the library. Returns none, with the reason on standard error, while there is no library.
    pub fn library() -> Option<Self> {
        if let Err(why) = build::library() {
            eprintln!("skipped: {why}");
            return None;
        }
        let scratch = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        binary("isthmusd", "isthmusd").unwrap_or_else(|error| panic!("{error}")); // Built before the time of its start runs.
        let daemon = DaemonProcess::on(&scratch).config(CONFIG).start(timeout());
        Some(Self::Library(Box::new(daemon.unwrap_or_else(|error| panic!("{error}"))), scratch))
    }

    /// Launches a program on this host.
    pub fn launch(&self, program: impl Into<PathBuf>) -> Launch {
        match self {
            Self::Kernel => Launch::new(program),
            Self::Library(daemon, _) => {
                let library = build::library().expect("a stage has been made with it").join(build::LIBRARY);
                daemon.launch_on_host(program).env("LD_PRELOAD", library)
            }
        }
    }

    /// Returns whether programs use the library.
    pub fn has_library(&self) -> bool {
        matches!(self, Self::Library(..))
    }

    /// Returns the daemon's process, if there is one.
    pub fn daemon(&mut self) -> Option<&mut DaemonProcess> {
        match self {
            Self::Kernel => None,
            Self::Library(daemon, _) => Some(daemon),
        }
    }

    /// Returns the streams that `isthmus stream list` shows: none on the kernel.
    pub fn streams(&self) -> Vec<Value> {
        let Self::Library(daemon, _) = self else { return Vec::new() };
        let isthmus = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
        let listed = daemon.launch_on_host(isthmus).args(["stream", "list", "--json"]).spawn();
        let listed = listed.unwrap_or_else(|error| panic!("{error}")).finish(timeout());
        let text = listed.unwrap_or_else(|error| panic!("{error}")).expect_success().join("\n");
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        report["streams"].as_array().cloned().unwrap_or_default()
    }
}

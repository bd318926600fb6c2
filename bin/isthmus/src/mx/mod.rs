//! MX: boards and their peers, captures of their frames, and the library that MX programs use.
//!
//! ```text
//! boards  ─▶ isthmus board list, isthmus peer list    the MX report of the daemon
//! capture ─▶ isthmus capture                          frames of boards, as a pcapng file
//! PROGRAMS ▶ isthmus run                              libmyriexpress.so
//! ```

mod boards;
mod capture;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use isthmus_report::EndpointRow;

use crate::output::{Outcome, Output};
use crate::run::{ProgramCapability, Setting};
use capture::CaptureArgs;

/// The commands of MX.
#[derive(Subcommand)]
pub(crate) enum MxCommand {
    /// MX boards of this host. A board is to MX programs what a network card is to other programs.
    #[command(subcommand)]
    Board(BoardVerb),

    /// MX boards that can be reached, including those of this host.
    #[command(subcommand)]
    Peer(PeerVerb),

    /// Writes the frames that MX boards send and receive into a file for Wireshark (pcapng).
    ///
    /// Each link of a board is an interface of the capture. Only root and the daemon's user may capture, because the frames are
    /// those of all domains. The capture ends with Ctrl-C. The file then states how many frames are missing because they came
    /// faster than they were written; the daemon never waits for the file. For a live view: `isthmus capture | tshark -r -`, with
    /// the dissector of Isthmus, `mxoe.lua`.
    Capture(CaptureArgs),
}

#[derive(Subcommand)]
pub(crate) enum BoardVerb {
    /// Lists the boards: address (nic id), name, endpoint numbers in use, links and their state.
    List,
}

#[derive(Subcommand)]
pub(crate) enum PeerVerb {
    /// Lists the boards: address (nic id) and name, as `mx_hostname_to_nic_id` resolves them.
    List,
}

impl MxCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Board(BoardVerb::List) => boards::list_boards(output, socket),
            Self::Peer(PeerVerb::List) => boards::list_peers(output, socket),
            Self::Capture(args) => capture::run(output, socket, &args),
        }
    }
}

/// The row of `isthmus run`.
pub(crate) const PROGRAMS: ProgramCapability = ProgramCapability {
    name: "mx",
    users: "Programs of Myrinet's MX",
    library: "libmyriexpress.so",
    other_names: &["libmyriexpress.so.0", "libopen-mx.so", "libopen-mx.so.0"],
    other_libraries: &[],
    device_files: &[],
    is_opt_in: false,
    is_in_guests: true,
    settings: |place| Ok(settings(place.folder)),
    unfit: |_| None,
    doctor: Some(boards::check),
};

fn settings(folder: &Path) -> Vec<Setting> {
    vec![Setting {
        name: "LD_LIBRARY_PATH",
        value: folder.to_string_lossy().into_owned(),
        effect: "where programs find libmyriexpress.so and libopen-mx.so",
        is_list: true,
    }]
}

/// Returns the MX endpoint number of an endpoint, if it has one.
pub(crate) fn endpoint_number(row: &EndpointRow) -> Option<String> {
    row.mx.as_ref().map(boards::number)
}

//! The overlay: the networks of this host, and the ways of their frames.
//!
//! ```text
//! list ─────▶ isthmus overlay list       the daemon's report about its networks
//! explain ──▶ isthmus overlay explain    why a frame goes where it goes
//! doctor ───▶ isthmus doctor             interfaces that are missing, hosts that cannot be reached
//! ```

mod doctor;
mod explain;
mod list;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::output::{Outcome, Output};

pub(crate) use doctor::check;

/// The commands of the overlay.
#[derive(Subcommand)]
pub(crate) enum OverlayCommand {
    /// The overlay: Ethernet networks for containers and VMs of several hosts.
    #[command(subcommand)]
    Overlay(OverlayVerb),
}

#[derive(Subcommand)]
pub(crate) enum OverlayVerb {
    /// Lists the networks with their interfaces, edges, and counts of frames.
    List,
    /// Explains where a frame goes: the rule that decides, the path of each copy, and why every other route lost.
    ///
    /// The answer holds for a frame that would be sent now. Learned addresses are those of a moment ago.
    Explain(explain::ExplainArgs),
}

impl OverlayCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Overlay(OverlayVerb::List) => list::list(output, socket),
            Self::Overlay(OverlayVerb::Explain(args)) => explain::explain(output, socket, &args),
        }
    }
}

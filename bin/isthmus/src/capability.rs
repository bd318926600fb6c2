//! The capabilities of this program: the one list that names them.
//!
//! A capability has a folder with its commands, its row of `isthmus run`, and its column of lists. Everything else uses this list.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use isthmus_report::EndpointRow;

use crate::doctor::{CheckPlace, Finding};
use crate::fabric::{self, FabricCommand};
use crate::mx::{self, MxCommand};
use crate::output::{Outcome, Output};
use crate::overlay::{self, OverlayCommand};
use crate::run::ProgramCapability;
use crate::sockets::{self, SocketsCommand};
use crate::verbs::{self, VerbsCommand, explain_queue_pair, missing_plug_in};

/// The commands of all capabilities.
#[derive(Subcommand)]
pub(crate) enum CapabilityCommand {
    #[command(flatten)]
    Mx(MxCommand),
    #[command(flatten)]
    Fabric(FabricCommand),
    #[command(flatten)]
    Sockets(SocketsCommand),
    #[command(flatten)]
    Verbs(VerbsCommand),
    #[command(flatten)]
    Overlay(OverlayCommand),
}

impl CapabilityCommand {
    pub(crate) fn run(self, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
        match self {
            Self::Mx(command) => command.run(output, socket),
            Self::Fabric(command) => command.run(output, socket),
            Self::Sockets(command) => command.run(output, socket),
            Self::Verbs(command) => command.run(output, socket),
            Self::Overlay(command) => command.run(output, socket),
        }
    }
}

/// Explains the path of a descriptor of a process.
pub(crate) fn why_descriptor(output: Output, socket: Option<PathBuf>, pid: u32, fd: u32) -> Result<Outcome> {
    sockets::why(output, socket, pid, fd)
}

/// Explains the path of a queue pair.
pub(crate) fn why_queue_pair(output: Output, socket: Option<PathBuf>, number: u32) -> Result<Outcome> {
    explain_queue_pair(output, socket, number)
}

/// Returns what RDMA programs of this machine lack of this installation, if anything.
pub(crate) fn missing_for_rdma() -> Option<String> {
    missing_plug_in()
}

/// The table of `isthmus run`.
pub(crate) const PROGRAM_CAPABILITIES: [ProgramCapability; 4] =
    [mx::PROGRAMS, fabric::PROGRAMS, sockets::PROGRAMS, verbs::PROGRAMS];

/// The checks of capabilities that are not used by programs.
pub(crate) const CHECKS: [fn(&CheckPlace<'_>, &mut Vec<Finding>); 1] = [overlay::check];

/// A column of `isthmus endpoint list`.
#[derive(Clone, Copy)]
pub(crate) struct EndpointColumn {
    pub(crate) title: &'static str,
    /// Returns the cell of an endpoint.
    pub(crate) cell: fn(&EndpointRow) -> Option<String>,
}

/// The columns that capabilities add.
pub(crate) const ENDPOINT_COLUMNS: [EndpointColumn; 1] = [EndpointColumn { title: "mx", cell: mx::endpoint_number }];

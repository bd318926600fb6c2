//! `isthmus`: the command-line tool of operators and newcomers.
//!
//! ```text
//! cli ─▶ daemon ─────▶ status, domain, channel, endpoint, why   sends a query to the daemon, shows the report
//!    ├─▶ guest ──────▶ the guests of the daemon, and the devices that their machines need
//!    ├─▶ local ──────▶ reason, environment, config              needs no daemon
//!    ├─▶ run ────────▶ a program, with the capabilities that are installed
//!    ├─▶ cdi ────────▶ the same for containers, as a device of their runtime
//!    ├─▶ capability ─▶ one folder a capability, with its commands and its row of `run`
//!    ├─▶ admission ──▶ guest allow, guest deny                  the rights of guests of this host, in XenStore
//!    ├─▶ doctor ─────▶ one file a group of checks               tries operations, names remedies
//!    └─▶ demo ───────▶ a daemon of its own, two processes, a table: `isthmus try`
//! output ── one JSON object or aligned columns; results on stdout, the rest on stderr
//! ```
//!
//! Only `try` starts a daemon. Only `overlay` changes a running one: its networks, interfaces, edges and routes, until it
//! restarts or reads its configuration again. `guest allow` changes the rights of a Xen guest on its host.

#![forbid(unsafe_code)]

mod admission;
mod capability;
mod cdi;
mod cli;
mod config;
mod daemon;
mod demo;
mod doctor;
mod environment;
mod fabric;
mod guest;
mod mx;
mod output;
mod overlay;
mod program_file;
mod reason;
mod run;
mod sockets;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

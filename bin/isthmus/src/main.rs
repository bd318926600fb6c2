//! `isthmus`: what an operator asks, and what a newcomer tries.
//!
//! ```text
//! cli ─▶ daemon ──▶ status, domain, channel, endpoint, why      asks the daemon, shows its answer
//!    ├─▶ guest ───▶ the guests it serves, and what their machines need
//!    ├─▶ capture ─▶ frames of MX boards, into a file              asks the daemon for them
//!    ├─▶ local ───▶ reason, environment, config                  needs no daemon
//!    ├─▶ run ─────▶ a program, with the capabilities that are installed
//!    ├─▶ mpi ─────▶ mpi env, mpi run                          variables of MPIs, and their launcher
//!    ├─▶ admission ▶ guest allow, guest deny                   what guests of this host may, in XenStore
//!    ├─▶ doctor ──▶ one file a group of checks                   tries operations, names remedies
//!    └─▶ demo ────▶ a daemon of its own, two processes, a table  `isthmus try`
//! output ── one JSON object or aligned columns; results on stdout, the rest on stderr
//! ```
//!
//! Nothing here starts a daemon but `try`, and nothing changes one. `guest allow` changes what a host of Xen allows its guests.

#![forbid(unsafe_code)]

mod admission;
mod capture;
mod cli;
mod config;
mod daemon;
mod demo;
mod doctor;
mod environment;
mod guest;
mod mpi;
mod output;
mod reason;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

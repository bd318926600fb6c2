//! `isthmus-bench`: the speed of messages between two processes, beside other ways between them.
//!
//! ```text
//! cli ─▶ figures ──▶ case, baseline ─┐            report (JSON lines, tables)
//!    ├─▶ baselines ─▶ baseline ──────┤  pair ──▶  worker ─▶ path ─▶ drive     (two processes, pinned)
//!    ├─▶ paths ────▶ sweep ──────────┤            plot (SVG)
//!    └─▶ raw ────────────────────────┘  hosts: two of them in namespaces, a wire between them, a daemon on each
//!
//! mx, fabric, verbs, overlay ── the rows of a capability, and the programs that they need
//! demo (isthmus try) ─▶ the same
//! ```
//!
//! Both ends are always processes of their own, on different cores. Cases that are compared run in turns in the same run. The
//! program never decides whether a target is met.
//!
//! The crate is also a library: for `isthmus try`, which shows the same measurements to people ([`demo`]), and for programs that
//! report measurements of their own in the same form ([`result_table`]).

#![forbid(unsafe_code)]

mod baseline;
mod case;
mod cli;
mod control_pipe;
mod cpu;
mod cpu_placement;
mod daemon;
mod date;
pub mod demo;
mod drive;
mod fabric;
mod figures;
mod hosts;
mod job;
mod load;
mod machine;
mod mx;
mod overlay;
mod pair;
mod path;
mod pin;
mod plot;
mod pool;
mod programs;
mod report;
pub mod result_table;
mod sockets;
mod stats;
mod sweep;
mod target;
mod temp_folder;
mod verbs;
mod worker;

pub use cli::main;

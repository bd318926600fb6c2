//! Runs a daemon from its configuration: sets up its socket, tickets, workers, broker and server, and takes them apart again.
//!
//! ```text
//!   daemon ──────── everything put together: the host's daemon, or a guest's
//!     privileges ── what the process may do once its sockets are open
//!     heartbeat ─── messages to the watchdog of a service manager
//!     metrics_server ── the counters over HTTP
//! ```
//!
//! Only this crate knows both the control plane and the guests.
//!
//! ```no_run
//! use isthmus_config::{self as config, Inputs, Role};
//! use isthmus_daemon::{Daemon, DaemonOptions};
//!
//! let inputs = Inputs::of_this_process(Role::User, None, Vec::new());
//! let loaded = config::load(&inputs).unwrap();
//! let daemon = Daemon::open(DaemonOptions::new(loaded)).unwrap();
//! let ended = daemon.run(|| ()).unwrap();
//! println!("{ended:?}");
//! ```
#![forbid(unsafe_code)]

mod daemon;
mod heartbeat;
mod metrics_server;
mod privileges;

pub use daemon::{Daemon, DaemonError, DaemonOptions, HostAccess, Reload, host_warnings};

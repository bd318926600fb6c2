//! MX in the data plane: boards, their links to other hosts, and the endpoints of this host's domains on them.
//!
//! ```text
//!   worker ── records for remote peers ────► transport ──┐                    ┌─► link ─► other hosts
//!                                                        ├─ board's endpoints ┤
//!   shared ◄─ deliver, credit ────────────── transport ◄─┘   board: which?    └── link ◄─
//! ```
//!
//! A poll sends queued frames, receives frames from links that are ready, and runs due timers; it never waits. Control chooses the worker
//! of each board. Other workers forward their domains' records for remote peers to it, as they forward records between domains.
//!
//! | file | content |
//! | --- | --- |
//! | `command` | commands of control: boards, endpoints, connects, captures |
//! | `poller`, `schedule` | the calls of a worker, and which boards to poll |
//! | `board`, `endpoints`, `port` | one board, its endpoints, its links |
//! | `local_domain` | the local side of endpoints |
//! | `capture`, `duplicates`, `view` | captures of frames, duplicate addresses, the published state |

mod board;
mod capture;
mod command;
mod duplicates;
mod endpoints;
mod local_domain;
mod poller;
mod port;
mod schedule;
mod view;

pub use capture::{CaptureTap, NewCapture, WakeReader};
pub use command::{MxBoardNumber, MxCommand, NewMxBoard, NewMxConnect, NewMxEndpoint};
pub(crate) use poller::MxPoller;
pub use view::{LinkView, MxView};

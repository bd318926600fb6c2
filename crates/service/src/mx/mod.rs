//! MX in the data plane: boards, their links to other hosts, and the endpoints of this host's domains on them.
//!
//! ```text
//!   worker ── records for remote peers ────► transport ──┐                    ┌─► link ─► other hosts
//!     ▲                                                  ├─ board's endpoints ┤
//!     └────── deliver, credit ◄───────────── transport ◄─┘   board: which?    └── link ◄─
//! ```
//!
//! A poll sends queued frames, receives frames, and runs due timers; it never waits. One worker has all boards. Other workers
//! forward their domains' records for remote peers to it, as they forward records between domains.
//!
//! | file | content |
//! | --- | --- |
//! | `command` | commands of control: boards, endpoints, connects, captures |
//! | `poller` | the calls of a worker, and the local side of endpoints |
//! | `board`, `endpoints`, `port` | one board, its endpoints, its links |
//! | `capture`, `duplicates`, `view` | captures of frames, duplicate addresses, the published state |

mod board;
mod capture;
mod command;
mod duplicates;
mod endpoints;
mod poller;
mod port;
mod view;

use crate::WorkerIndex;

pub use capture::{NewCapture, WakeReader};
pub use command::{MxBoardNumber, MxCommand, NewMxBoard, NewMxConnect, NewMxEndpoint};
pub(crate) use poller::MxPoller;
pub use view::{LinkView, MxView};

/// The worker that has the links.
pub(crate) const MX_WORKER: WorkerIndex = WorkerIndex(0);

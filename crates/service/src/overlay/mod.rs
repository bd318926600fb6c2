//! Overlay networks in the data plane: frames between the TAPs of this host and the edges to other hosts.
//!
//! ```text
//!   TAP ── frame with its virtio-net header ──► routes ─┬─► TAP                        the same bytes
//!                                                       └─► edge ── whole or cut ──► socket ─► other hosts
//!   TAP ◄── writev from the received buffer ◄── routes ◄── edge of the sender ◄── socket ◄─
//! ```
//!
//! A poll reads a bounded number of frames from each TAP and socket that is ready; it never waits. A frame for an edge with a full socket
//! is held, and its TAP is not read until the socket has room. All interfaces and edges of a network are on one worker.
//!
//! | file | content |
//! | --- | --- |
//! | `command` | commands of control: networks, interfaces, sockets, edges |
//! | `poller` | the calls of a worker, and the sources of frames |
//! | `network` | one network: what happens to a frame |
//! | `edge`, `socket` | sending to one host; receiving from all |
//! | `counters`, `view` | counts by reason, and the published state |

mod command;
mod counters;
mod edge;
mod network;
mod poller;
mod ports;
mod socket;
#[cfg(test)]
mod tests;
mod view;

pub use command::{
    NewOverlayEdge, NewOverlayInterface, NewOverlayNetwork, NewOverlaySocket, OverlayCommand, OverlayEdgeKind,
    OverlayEvent, OverlayNetworkNumber, OverlaySocketNumber,
};
pub use counters::{FrameLoss, FrameLosses, OverlaySocketCounters, PortCounters, UnknownDatagram};
pub(crate) use poller::OverlayPoller;
pub use view::{EdgeView, InterfaceView, LearnedView, OverlayView};

//! The data plane of the daemon: workers that carry the records of the daemon path from one domain's ring into another's.
//!
//! ```text
//!   command ─ commands of control, and events      service ─ the workers, their threads
//!      │                                              │
//!      └─► mailbox ─► worker ◄──────────────────────── ┘
//!                       ├── pollers ── links to other hosts, by capability ──┐
//!                       └── shared ◄── deliver, credit ──────────────────────┘
//!                             ├── router ── permissions, credit, waiting records: decides, never touches a ring
//!                             │     domain_state, flow
//!                             ├── domain_rings ─ records and bytes in and out
//!                             └── sleeper ─ all doorbells, all links
//! ```
//!
//! Most messages between domains of one host use channels and never come here. The daemon path carries messages before a channel is
//! open, and messages of pairs that may not have one. The first aim is that no domain can disturb another. Each pair has a credit
//! that bounds the records that the daemon holds for it. A slow receiver delays no other domain. A domain that violates the protocol
//! loses its ring, without any other effect.
//!
//! A record from one domain to another:
//!
//! ```
//! use isthmus_channel::{Channel, ChannelParts};
//! use isthmus_layout::channel::{ChannelGeometry, Direction, SlabSize};
//! use isthmus_layout::ready_map::{self, ReadyBit};
//! use isthmus_layout::record::{Record, Route};
//! use isthmus_layout::{DomainId, EndpointIndex, control::Owner};
//! use isthmus_platform::Doorbell;
//! use isthmus_service::{Command, NewDomain, Service, ServiceOptions, WorkerReadyMapId};
//! use isthmus_shm::{Mapping, RecordBuffer, SharedMapping};
//!
//! let service = Service::start(ServiceOptions::default(), |event| println!("{event:?}"))?;
//! let worker = service.workers().next().unwrap();
//! let private = |size| SharedMapping::new(Mapping::private(size));
//! let (memory, doorbell, ready_map) = (private(ready_map::SIZE), Doorbell::new()?, WorkerReadyMapId(0));
//! service.send(Command::AddReadyMap { worker, ready_map, memory: memory.clone(), doorbell: doorbell.clone() });
//!
//! // A domain's ring: the worker gets one end, the domain the other.
//! let attach = |domain: DomainId| {
//!     let geometry = ChannelGeometry { slab: SlabSize::new(64 << 10).unwrap() };
//!     let (ring, own_ready_map) = (private(geometry.size()), private(ready_map::SIZE));
//!     let parts = |send_direction, peer_ready_map, ready_bit, peer_doorbell| {
//!         ChannelParts { memory: ring.clone(), geometry, send_direction, peer_ready_map, ready_bit, peer_doorbell }
//!     };
//!     let ready_bit = ReadyBit::new(domain.number() as u16).unwrap();
//!     let workers_parts = parts(Direction::One, own_ready_map, ReadyBit::DOMAIN_RING, Doorbell::new().unwrap());
//!     let counters = Default::default();
//!     let new = NewDomain { domain, owner: Owner(0), parts: workers_parts, ready_map, ready_bit, counters };
//!     service.send(Command::Add(Box::new(new)));
//!     Channel::new(parts(Direction::Zero, memory.clone(), ready_bit, doorbell.clone()))
//! };
//! let (alice, bob) = (DomainId::new(2).unwrap(), DomainId::new(3).unwrap());
//! let (mut of_alice, mut of_bob) = (attach(alice), attach(bob));
//!
//! let end = EndpointIndex::new(0).unwrap();
//! let route = Route { from: end, to: end, epoch: 0, peer: Some(bob) };
//! of_alice.send(route, &Record::Eager { tag: 7, len: 5, words: &[] }, b"hello")?;
//! of_alice.flush();
//! let mut record = RecordBuffer::default();
//! while !of_bob.receive(&mut record)? {}
//! let (route, _) = Record::parse(record.kind(), record.bytes(), record.words())?;
//! assert_eq!(route.peer, Some(alice));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod command;
mod counters;
mod domain_removal;
mod domain_rings;
mod domain_state;
mod flow;
mod mailbox;
mod mx;
pub mod overlay;
mod pollers;
mod record_kinds;
mod remote_peers;
mod router;
mod service;
mod shared;
mod sleeper;
mod tasks;
mod violation;
mod worker;

#[cfg(test)]
mod tests;

pub use command::{Command, Event, EventHandler, NewDomain, SendPolicy, WorkerIndex, WorkerReadyMapId};
pub use counters::{DomainCounters, PerReason, WorkerCounters};
pub use mx::{
    CaptureTap, LinkView, MxBoardNumber, MxCommand, MxView, NewCapture, NewMxBoard, NewMxConnect, NewMxEndpoint,
    WakeReader,
};
pub use remote_peers::RemoteAddress;
pub use router::{HELD_DOMAIN_MAX, HELD_WORKER_MAX};
pub use service::{Service, ServiceOptions, StartError, WORKERS_MAX};
pub use violation::Violation;

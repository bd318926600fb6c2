//! The data plane of the daemon: workers which carry what takes the ordinary path, from one domain's ring into another's.
//!
//! ```text
//!   command ─ what control says, and hears         service ─ the workers, their threads
//!      │                                              │
//!      └─► mailbox ─► worker ◄──────────────────────── ┘
//!                       │ ├── router ── who may, whose credit, who waits: decides, never touches a ring
//!                       │ │     party, lane
//!                       │ └── rings ─── records and bytes in and out
//!                       └──── sleeper ─ all doorbells
//! ```
//!
//! Most messages between domains of one host never come here: they ride channels. Here come those before a channel is made, and those of pairs
//! that may not have one. So the first aim is that no domain can disturb another: each pair has a credit that bounds what the daemon
//! holds for it, a slow receiver delays nobody else, and whoever breaks the contract loses its ring and nothing else happens.
//!
//! A record from one domain to another:
//!
//! ```
//! use isthmus_channel::{Channel, Ends};
//! use isthmus_layout::board::{self, Place};
//! use isthmus_layout::channel::{Direction, Geometry, SlabSize};
//! use isthmus_layout::record::{Record, Route};
//! use isthmus_layout::{DomainId, EndpointIndex, control::Owner};
//! use isthmus_platform::Doorbell;
//! use isthmus_service::{BoardNumber, Command, NewDomain, Options, Service};
//! use isthmus_shm::{Mapping, RecordBuffer, Window};
//!
//! let service = Service::start(Options::default(), |event| println!("{event:?}"))?;
//! let worker = service.workers().next().unwrap();
//! let (memory, doorbell, board) = (Window::new(Mapping::private(board::SIZE)), Doorbell::new()?, BoardNumber(0));
//! service.send(Command::AddBoard { worker, board, memory: memory.clone(), doorbell: doorbell.clone() });
//!
//! // A domain's ring: the worker gets one end, the domain the other.
//! let attach = |domain: DomainId| {
//!     let geometry = Geometry { slab: SlabSize::new(64 << 10).unwrap() };
//!     let (window, own_board) = (Window::new(Mapping::private(geometry.size())), Window::new(Mapping::private(board::SIZE)));
//!     let ends = |sends, peer_board, place, peer_doorbell| {
//!         Ends { window: window.clone(), geometry, sends, peer_board, place, peer_doorbell }
//!     };
//!     let place = Place::new(domain.number() as u16).unwrap();
//!     let workers_end = ends(Direction::One, own_board, Place::DOMAIN_RING, Doorbell::new().unwrap());
//!     let new = NewDomain { domain, owner: Owner(0), ends: workers_end, board, place, counters: Default::default() };
//!     service.send(Command::Add(Box::new(new)));
//!     Channel::new(ends(Direction::Zero, memory.clone(), place, doorbell.clone()))
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

mod breach;
mod command;
mod counters;
mod endings;
mod kinds;
mod lane;
mod mailbox;
mod orders;
mod party;
mod rings;
mod router;
mod service;
mod sleeper;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

pub use breach::Breach;
pub use command::{BoardNumber, Command, Event, Listener, NewDomain, Permit, WorkerIndex};
pub use counters::{DomainCounters, PerReason, WorkerCounters};
pub use router::{HELD_DOMAIN_MAX, HELD_WORKER_MAX};
pub use service::{Options, Service, StartError, WORKERS_MAX};
pub use wire::{LinkView, MxBoardNumber, MxConnect, MxEndpoint, MxView, NewCapture, NewMxBoard, Wake};

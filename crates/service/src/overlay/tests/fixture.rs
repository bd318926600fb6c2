//! Hosts, each with a poller that is stepped by hand, and the containers behind their TAPs.

use super::super::command::*;
use super::super::network::{Interface, OverlayNetwork};
use super::super::{FrameLoss, OverlayPoller, OverlaySocketCounters, OverlayView, PortCounters};
use crate::shared::Shared;
use crate::{Event, SendPolicy, WorkerIndex};
use isthmus_link::{EdgeSocket, TAP_FRAME_BYTES_MAX, Tap};
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{EdgeId, InterfaceId, Millis, NetworkOptions};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(super) const NETWORK: OverlayNetworkNumber = OverlayNetworkNumber(7);
pub(super) const SOCKET: OverlaySocketNumber = OverlaySocketNumber(3);
pub(super) const EDGE: EdgeId = EdgeId(0);
pub(super) const KINDS: [OverlayEdgeKind; 3] = [OverlayEdgeKind::Fast, OverlayEdgeKind::Vxlan, OverlayEdgeKind::Udp];

pub(super) const BROADCAST: [u8; 6] = [0xff; 6];

/// The MAC address of a container.
pub(super) fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0x5e, 0, 0, number]
}

pub(super) fn vni() -> Vni {
    Vni::new(0x12_34_56).unwrap()
}

/// A frame with its virtio-net header, which states nothing.
pub(super) fn plain(to: [u8; 6], from: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let header = [0; 12];
    [&header[..], &to, &from, &[0x88, 0xb5], payload].concat()
}

/// A TCP segment of `payload` bytes that is to be cut, with its virtio-net header.
pub(super) fn large(to: [u8; 6], from: [u8; 6], payload: usize) -> Vec<u8> {
    let header = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0]; // Segments of 1448 bytes.
    let mut ip = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    let sum = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let tcp = [0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let payload: Vec<u8> = (0..payload).map(|at| (at % 251) as u8).collect();
    [&header[..], &to, &from, &[8, 0], &ip, &tcp, &payload].concat()
}

/// The container's end of a TAP.
pub(super) struct Container(pub(super) OwnedFd);

impl Container {
    pub(super) fn send(&self, frame: &[u8]) {
        assert_eq!(send(&self.0, frame, SendFlags::empty()).unwrap(), frame.len());
    }

    pub(super) fn receive(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; TAP_FRAME_BYTES_MAX];
        let (len, _) = recv(&self.0, &mut bytes[..], RecvFlags::empty()).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }
}

/// A host with one network.
pub(super) struct Host {
    pub(super) poller: OverlayPoller,
    pub(super) shared: Shared,
    events: Arc<Mutex<Vec<Event>>>,
    view: Arc<Mutex<OverlayView>>,
    pub(super) refused: Arc<OverlaySocketCounters>,
}

impl Host {
    pub(super) fn new() -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let heard = events.clone();
        let handler = Box::new(move |event| heard.lock().unwrap().push(event));
        let policy = SendPolicy::allow_all();
        let shared = Shared::new(WorkerIndex(0), policy, Arc::default(), Vec::new(), handler).unwrap();
        let (view, refused) = Default::default();
        let mut host = Self { poller: OverlayPoller::default(), shared, events, view, refused };
        host.execute(OverlayCommand::AddNetwork(Box::new(NewOverlayNetwork {
            number: NETWORK,
            vni: vni(),
            options: NetworkOptions::new([1, 2]),
            view: host.view.clone(),
        })));
        host
    }

    pub(super) fn execute(&mut self, command: OverlayCommand) {
        self.poller.execute(&mut self.shared, command);
    }

    /// Adds an interface. Returns the container's end.
    pub(super) fn interface(&mut self, number: u16) -> Container {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (tap, container) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        self.interface_on(number, tap);
        Container(container)
    }

    pub(super) fn interface_on(&mut self, number: u16, tap: OwnedFd) {
        let (interface, tap) = (InterfaceId(number), Tap::new("tap", tap));
        let new = NewOverlayInterface { network: NETWORK, interface, tap, mtu: 1500, sources: None };
        self.execute(OverlayCommand::AddInterface(new));
    }

    pub(super) fn socket(&mut self, kind: OverlayEdgeKind, socket: EdgeSocket) {
        let counters = self.refused.clone();
        self.execute(OverlayCommand::AddSocket(Box::new(NewOverlaySocket { number: SOCKET, kind, socket, counters })));
    }

    pub(super) fn edge(&mut self, edge: EdgeId, to: SocketAddr) {
        let new = NewOverlayEdge { network: NETWORK, edge, socket: SOCKET, to, first_message: u32::MAX };
        self.execute(OverlayCommand::AddEdge(new));
    }

    /// One step, as the worker makes it. True if anything was done.
    pub(super) fn step(&mut self) -> bool {
        self.shared.sleeper.check();
        while let Some(event) = self.shared.sleeper.pop_event() {
            self.poller.ready(event.source.number, event.is_readable, event.is_writable);
        }
        self.poller.poll(&mut self.shared)
    }

    /// Lets the timers run with the next step.
    pub(super) fn touch(&mut self) {
        self.poller.touch(0, Millis(0));
    }

    pub(super) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    pub(super) fn view(&self) -> OverlayView {
        self.view.lock().unwrap().clone()
    }

    pub(super) fn network(&mut self) -> &mut OverlayNetwork {
        self.poller.networks.iter_mut().flatten().find(|network| network.number == NETWORK).unwrap()
    }

    pub(super) fn served(&mut self, number: u16) -> &mut Interface {
        self.network().interface(InterfaceId(number)).unwrap()
    }

    pub(super) fn edge_counters(&mut self) -> PortCounters {
        self.network().edge(EDGE).unwrap().counters()
    }

    pub(super) fn edge_lost(&mut self, loss: FrameLoss) -> u64 {
        self.edge_counters().lost.count(loss)
    }

    /// Lets the edge use datagrams of this length, as a path with a small MTU would.
    pub(super) fn limit_path(&mut self, bytes: usize) {
        let edge = self.network().edge(EDGE).unwrap();
        (edge.path_due, edge.datagram_bytes) = (Millis(u64::MAX), Some(bytes));
    }
}

/// Steps hosts until `done` returns a value.
pub(super) fn until<T>(hosts: &mut [&mut Host], mut done: impl FnMut(&mut [&mut Host]) -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        hosts.iter_mut().for_each(|host| _ = host.step());
        if let Some(value) = done(hosts) {
            return value;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it does not happen");
        std::thread::yield_now();
    }
}

/// Opens sockets on two loopback addresses with the same port.
pub(super) fn sockets(kind: OverlayEdgeKind) -> [EdgeSocket; 2] {
    let open = |last, port| {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), port);
        EdgeSocket::open(address, kind != OverlayEdgeKind::Fast)
    };
    let mut pairs = (0..100).filter_map(|_| {
        let first = open(1, 0).unwrap();
        let second = open(2, first.bound().port()).ok()?;
        Some([first, second])
    });
    pairs.next().expect("a port that is free on both addresses")
}

/// Two hosts with an edge between them.
pub(super) fn connected(kind: OverlayEdgeKind) -> (Host, Host) {
    let sockets = sockets(kind);
    let [first, second] = [&sockets[0], &sockets[1]].map(EdgeSocket::bound);
    let mut hosts = sockets.into_iter().zip([second, first]).map(|(socket, to)| {
        let mut host = Host::new();
        host.socket(kind, socket);
        host.edge(EDGE, to);
        host
    });
    (hosts.next().unwrap(), hosts.next().unwrap())
}

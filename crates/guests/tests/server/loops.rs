//! Loop devices: guests learn of one another by their interfaces, and of the rings that they share.

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::loops::{
    LOOP_BYTES, LoopInterfaces, LoopPeer, LoopPeers, LoopRequest, LoopRequestKind, Mac,
};
use isthmus_layout::proxy::{LOOPS_WORD, ProxyFrameKind, ResourceRef, WindowId};
use isthmus_platform::seqpacket;
use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping, Words as _};
use std::sync::atomic::Ordering;

use crate::guest::{Guest, status};
use crate::monitor::{Monitor, MonitorBehaviour};
use crate::testbed::Testbed;

const NAMES: [&str; 3] = ["web", "base", "mail"];

/// Three guests: the first two in one network, and the last one in another.
struct Guests {
    bed: Testbed,
    guests: [Guest; 3],
    monitors: [Monitor; 3],
    _folder: tempfile::TempDir,
}

fn mac(of: usize) -> Mac {
    Mac::new([2, 0, 0, 0, 0, 1 + of as u8]).unwrap()
}

/// Starts a thread that reads the messages to QEMU. The host plugs no window in before they are read.
fn read_as_qemu(guest: &Guest) {
    let socket = guest.qemu.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut number, mut fds) = ([0; 8], Vec::new());
        while let Ok(8) = seqpacket::receive(&socket, &mut number, &mut fds, true) {
            fds.clear();
        }
    });
}

impl Guests {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let mut config = "[kvm]\n".to_owned();
        for (at, called) in NAMES.iter().enumerate() {
            let (monitor, network) = (folder.path().join(called), ["lan", "lan", "other"][at]);
            config += &format!(
                "[[kvm.guest]]\nname = \"{called}\"\nuser = {user}\nwindow_mib = 32\nvectors = 4\nmonitor = \"{}\"\n\
                 loops = [{{ network = \"{network}\", mac = \"{}\" }}]\n",
                monitor.display(),
                mac(at)
            );
        }
        let monitors = NAMES.map(|called| Monitor::listen(&folder.path().join(called), MonitorBehaviour::Honest));
        let bed = Testbed::with(&config);
        let guests = NAMES.map(|called| Guest::start_as(&bed, called));
        guests.iter().for_each(read_as_qemu);
        Self { bed, guests, monitors, _folder: folder }
    }

    fn state(&mut self, guest: usize, macs: &[Mac]) {
        let interfaces = LoopInterfaces::clip(macs.to_vec());
        self.guests[guest].frame(ProxyFrameKind::LoopInterfaces, 0, &interfaces.emit());
    }

    fn request(&mut self, guest: usize, kind: LoopRequestKind, peer: &LoopPeer) {
        let request = LoopRequest { kind, guest: peer.guest, window: peer.window, generation: peer.generation };
        self.guests[guest].frame(ProxyFrameKind::LoopRequest, 0, &request.emit());
    }

    /// Returns the next list that a guest is sent and that fulfils a condition.
    fn list_until(&mut self, guest: usize, so: impl Fn(&[LoopPeer]) -> bool) -> Vec<LoopPeer> {
        loop {
            let (frame, content) = self.guests[guest].next();
            if frame.kind == ProxyFrameKind::LoopPeers {
                let LoopPeers(peers) = LoopPeers::parse(&content).unwrap();
                if so(&peers) {
                    return peers.to_vec();
                }
            }
        }
    }

    /// Waits for the list that has the only peer of a guest, with or without rings.
    fn peer(&mut self, guest: usize, with_rings: bool) -> LoopPeer {
        let is_so = |peers: &[LoopPeer]| peers.len() == 1 && peers[0].extent().is_some() == with_rings;
        self.list_until(guest, is_so).remove(0)
    }

    fn alone(&mut self, guest: usize) {
        self.list_until(guest, <[_]>::is_empty);
    }

    /// Has the first two guests state their interfaces, and share rings.
    fn share(&mut self) -> ([LoopPeer; 2], [SharedMapping; 2]) {
        (0..2).for_each(|at| self.state(at, &[mac(at)]));
        let peers = [0, 1].map(|at| self.peer(at, false));
        self.request(0, LoopRequestKind::FrameSeen, &peers[0]);
        let plugged = [0, 1].map(|at| self.monitors[at].plugged());
        let window = WindowId(plugged[0].peer as u16 - 1);
        for at in [0, 1] {
            self.guests[at].frame(ProxyFrameKind::WindowAttached, 0, &window.emit());
        }
        let rings = [0, 1].map(|at| self.peer(at, true));
        assert_eq!([rings[0].window, rings[1].window], [window.0; 2]);
        let map = |memory| {
            let bytes = rustix::fs::fstat(&memory).unwrap().st_size.unsigned_abs();
            SharedMapping::new(Mapping::window(memory, 0, RegionSize(bytes), Access::ReadWrite).unwrap())
        };
        (rings, plugged.map(|plugged| map(plugged.memory)))
    }
}

#[test]
fn guests_of_one_network_learn_of_each_other_and_of_no_others() {
    let mut three = Guests::start();
    let takes = three.guests[0].memory.load(LOOPS_WORD, Ordering::Acquire);
    assert_eq!(takes, 1, "the host takes statements in the first session");
    // Addresses that the configuration does not name count for nothing, and nor does the address of another guest.
    three.state(0, &[mac(0), mac(1), mac(7)]);
    three.alone(0);
    three.state(2, &[mac(2)]);
    three.alone(2);
    three.state(1, &[mac(1)]);
    let (of_web, of_base) = (three.peer(0, false), three.peer(1, false));
    assert_eq!((of_web.own, of_web.mac), (mac(0), mac(1)));
    assert_eq!((of_base.own, of_base.mac), (mac(1), mac(0)));
    assert_ne!(of_web.guest, of_base.guest);
    // A guest of another network cannot ask for rings with one of this: nothing is plugged in, and the next request is answered.
    let forged = LoopPeer { guest: of_web.guest, ..of_web.clone() };
    three.request(2, LoopRequestKind::FrameSeen, &forged);
    // Nor does a guest get rings with itself, which has the number that the other one knows.
    three.request(0, LoopRequestKind::FrameSeen, &of_base);
    three.state(1, &[]);
    three.alone(0);
    assert_eq!([0, 1, 2].map(|at| three.monitors[at].devices()), [0; 3]);
    drop(three.bed);
}

#[test]
fn two_guests_share_rings_that_serve_once() {
    let mut three = Guests::start();
    let (rings, memory) = three.share();
    let place = |of: &LoopPeer| (of.offset, of.bytes, of.generation);
    assert_eq!(place(&rings[0]), place(&rings[1]));
    assert_eq!((rings[0].bytes, rings[0].side, rings[1].side), (LOOP_BYTES, 0, 1));
    // Each rings the vector that the other one listens to, at the number that the other one has.
    assert_eq!((rings[0].peer_vector, rings[1].peer_vector), (rings[1].vector, rings[0].vector));
    assert_ne!(rings[0].peer, rings[1].peer);
    let mut seen = [1; 64];
    memory[1].copy_out(rings[1].offset, &mut seen);
    assert_eq!(seen, [0; 64]);
    memory[0].copy_in(rings[0].offset, &[7; 64]);
    memory[1].copy_out(rings[1].offset, &mut seen);
    assert_eq!(seen, [7; 64]);

    // Requests about other rings change nothing. The host handles the frames of a guest in their order.
    let other = LoopPeer { generation: rings[0].generation + 1, ..rings[0].clone() };
    three.request(0, LoopRequestKind::Ended, &other);
    three.request(0, LoopRequestKind::Ended, &LoopPeer { window: rings[0].window + 1, ..rings[0].clone() });
    three.guests[0].attach(1, "web1").unwrap();
    let rows = status(&three.bed).loops.unwrap();
    let pairs: Vec<_> = rows.iter().filter(|row| row.peer.is_some()).collect();
    assert_eq!(pairs.iter().map(|row| row.path.as_deref()).collect::<Vec<_>>(), [Some("shared memory")], "{rows:?}");
    three.request(0, LoopRequestKind::Unused, &rings[0]);
    for at in [0, 1] {
        assert_eq!(three.peer(at, false).extent(), None);
    }
    // Both guests give the memory back. It is made again when a frame is seen, in the same window, with another generation.
    let begun = std::time::Instant::now();
    let again = loop {
        assert!(begun.elapsed().as_secs() < 60, "no rings are made");
        three.request(1, LoopRequestKind::FrameSeen, &rings[1]);
        three.state(1, &[mac(1)]); // The host replies to nothing else.
        std::thread::yield_now();
        if let Some((frame, content)) = three.guests[1].next_that_is_here()
            && frame.kind == ProxyFrameKind::LoopPeers
        {
            break LoopPeers::parse(&content).unwrap().0[0].clone();
        }
    };
    assert_eq!(again.window, rings[0].window);
    assert_ne!(again.generation, rings[0].generation);
    assert!(matches!(again.extent(), Some(ResourceRef::Extent { .. })));
    memory[1].copy_out(again.offset, &mut seen);
    assert_eq!(seen, [0; 64]);
}

#[test]
fn rings_go_with_a_session_or_an_interface() {
    let mut three = Guests::start();
    let (rings, _memory) = three.share();
    // The guest daemon of one starts anew. The other one has no peer until it states its interface again.
    three.guests[1].call();
    three.alone(0);
    three.state(1, &[mac(1)]);
    let peer = three.peer(0, false);
    assert_eq!(peer.guest, rings[0].guest);
    assert_eq!(three.peer(1, false).extent(), None);
    // An interface that goes down takes the other one's list with it.
    three.state(0, &[]);
    three.alone(1);
}

//! Ends each kind of process at each stage. The others are notified or continue, and the host daemon keeps no resources. This test has a process of
//! its own, because it counts the descriptors and mappings of the process.
#![allow(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "as above")]
#[path = "server/guest.rs"]
mod guest;
#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../control/tests/server/testbed.rs"]
mod testbed;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_layout::proxy::{ProxyFrameKind, SESSION_REPLY_WORD, SESSION_REQUEST_WORD};
use isthmus_report::StatusReport;
use isthmus_shm::Words as _;

use guest::{Guest, configured, row, until_domains, until_row};
use testbed::{Client, Testbed, name};

/// The stage that a guest has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GuestStage {
    Plugged,
    Called,
    Opened,
    Greeted,
    Attached,
    /// A program of the host has looked up the guest's program.
    Known,
    /// A channel between two programs of the guest was requested.
    Offered,
    /// Both programs have the channel.
    Open,
}

/// The component that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Termination {
    /// QEMU ends, or the device is unplugged.
    Machine,
    /// The guest daemon is killed and started again.
    Daemon,
    /// The guest daemon is asked to stop.
    Shutdown,
    /// The program closes its connection.
    Program,
    /// The host daemon ends and another one is started.
    Host,
}

const STAGES: [GuestStage; 8] = [
    GuestStage::Plugged,
    GuestStage::Called,
    GuestStage::Opened,
    GuestStage::Greeted,
    GuestStage::Attached,
    GuestStage::Known,
    GuestStage::Offered,
    GuestStage::Open,
];
const TERMINATIONS: [Termination; 5] =
    [Termination::Machine, Termination::Daemon, Termination::Shutdown, Termination::Program, Termination::Host];

/// The flags of a listening socket in the kernel's list.
const LISTENING: &str = " 00010000 ";

/// The resources in use.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// The number of mappings of this process.
    maps: usize,
    /// The used bytes of the other guest's window.
    used: Option<u64>,
    /// The number of descriptors of this process, by type.
    fds: BTreeMap<String, usize>,
}

/// A daemon with a program of its host and a program of another guest, which both observe every round.
struct Simulation {
    bed: Testbed,
    config: String,
    local: Client,
    other_guest: Guest,
    lives: u32,
}

impl Simulation {
    fn new() -> Self {
        let config = configured("web", 32, 4) + &configured("db", 32, 4);
        let mut bed = Testbed::with_fd_store(&config);
        let (local, _) = bed.attached("local");
        let mut other_guest = Guest::start_as(&bed, "db");
        other_guest.attach(1, "neighbour").unwrap();
        bed.wait_until_stored(2);
        Self { bed, config, local, other_guest, lives: 0 }
    }

    /// Replaces the host daemon by a new one.
    fn restart(&mut self) {
        // The next daemon would wait for this domain, because its process is alive, so the domain detaches first.
        self.local.request(Detach {}, &[]).unwrap();
        self.bed.stop();
        self.bed.restart_with_stored(&self.config);
        self.lives += 1;
        self.local = self.bed.attached(&format!("local{}", self.lives)).0;
        self.other_guest.wait_for(|memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == 0);
        self.other_guest.call();
        self.other_guest.attach(1, "neighbour").unwrap();
    }

    /// Starts a guest and brings it to `stage`. Returns it with its first domain.
    fn guest(&mut self, stage: GuestStage) -> (Guest, Option<DomainId>) {
        let mut guest = Guest::plug_in(&self.bed);
        if stage == GuestStage::Plugged {
            return (guest, None);
        }
        guest.wait_for_head();
        guest.call();
        if stage == GuestStage::Opened || stage == GuestStage::Greeted {
            guest.open(1);
        }
        if stage == GuestStage::Greeted {
            guest.send(1, Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("test 1") });
            guest.receive_message(1);
        }
        if stage < GuestStage::Attached {
            return (guest, None);
        }
        let (one, _) = guest.attach(1, "solver").unwrap();
        if stage >= GuestStage::Known {
            let found = self.local.request(Lookup { name: name("solver") }, &[]).unwrap().message;
            assert!(matches!(found, ToClient::Found(_)), "{found:?}");
        }
        if stage >= GuestStage::Offered {
            let (other, _) = guest.attach(2, "other").unwrap();
            guest.send(1, RequestChannel { peer: other.domain, attempt: 1 });
            let channel = loop {
                if let (2, ToClient::ChannelOffer(offer), _) = guest.receive_any() {
                    break offer.channel;
                }
            };
            if stage == GuestStage::Open {
                guest.send(2, AcceptChannel { channel });
                while !matches!(guest.receive_any().1, ToClient::ChannelOpen(_)) {}
            }
        }
        (guest, Some(one.domain))
    }

    fn terminate(&mut self, guest: Guest, termination: Termination) -> Option<Guest> {
        match termination {
            Termination::Machine => return None,
            Termination::Daemon => {
                let mut guest = guest;
                guest.wait_for_head();
                guest.call();
                guest.attach(1, "again").unwrap();
                return Some(guest);
            }
            Termination::Shutdown => {
                guest.memory.store(SESSION_REQUEST_WORD, 0, Ordering::Release);
                guest.ring();
            }
            Termination::Program => {
                let mut guest = guest;
                guest.frame(ProxyFrameKind::Closed, 1, &[]);
                return Some(guest);
            }
            Termination::Host => {
                self.bed.wait_until_stored(4);
                self.restart();
            }
        }
        Some(guest)
    }

    /// Checks the conditions that must hold after every termination.
    fn check_others(&mut self, domain: Option<DomainId>, (stage, termination): (GuestStage, Termination)) {
        if stage >= GuestStage::Known && termination != Termination::Host {
            let gone = self.local.receive_matching(|heard| matches!(heard.message, ToClient::PeerGone(_))).message;
            assert!(matches!(&gone, ToClient::PeerGone(gone) if Some(gone.peer) == domain), "{gone:?}");
        }
        self.local.request(Lookup { name: name("neighbour") }, &[]).unwrap();
        self.other_guest.send(1, Lookup { name: name("neighbour") });
        let found = self.other_guest.receive_message(1).0;
        assert!(matches!(found, ToClient::Found(_)), "{found:?}");
    }

    fn cost(&mut self) -> Cost {
        let guests = self.settled().guests.unwrap();
        let used = guests.iter().find(|row| row.name == "db").unwrap().used_bytes;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps = maps.lines().filter(|line| line.contains("memfd:isthmus")).count();
        let mut cost = Cost { maps, used, fds: BTreeMap::new() };
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let target = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
            let kind = target.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '[' | ']'));
            *cost.fds.entry(kind.to_owned()).or_default() += 1;
        }
        cost
    }

    /// Returns the daemon's status once it has closed its ends of finished connections. Those of `local` and of the other guest stay.
    fn settled(&mut self) -> StatusReport {
        let begun = Instant::now();
        loop {
            let status: StatusReport = self.local.report(Topic::Status, &[]).unwrap();
            if status.connections == 2 {
                return status;
            }
            assert!(begun.elapsed().as_secs() < 20, "{status:?}");
        }
    }

    /// Waits until the daemon has closed its end of the device's connection. The daemon reports `no device` a moment earlier.
    fn until_unplugged(&self) {
        let begun = Instant::now();
        let socket = row(&self.bed, "web").socket;
        let is_connection = |line: &str| line.ends_with(&socket) && !line.contains(LISTENING);
        while std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_connection) {
            assert!(begun.elapsed().as_secs() < 20, "{socket} still has a connection");
        }
    }

    fn until_cost(&mut self, expected: &Cost, what: (GuestStage, Termination)) {
        let begun = Instant::now();
        loop {
            let cost = self.cost();
            if cost == *expected {
                return;
            }
            assert!(begun.elapsed().as_secs() < 20, "{what:?}: {cost:?} instead of {expected:?}");
        }
    }

    fn round(&mut self, (stage, termination): (GuestStage, Termination)) {
        let (guest, domain) = self.guest(stage);
        let guest = self.terminate(guest, termination);
        self.check_others(domain, (stage, termination));
        drop(guest);
        until_row(&self.bed, "web", |row| row.state.as_deref() == Some("no device"));
        until_domains(&self.bed, 2);
        self.bed.wait_until_stored(2);
        self.until_unplugged();
    }
}

/// Returns all combinations, in an order that depends on the seed.
fn matrix(seed: u64) -> Vec<(GuestStage, Termination)> {
    let all = STAGES.into_iter().flat_map(|stage| TERMINATIONS.map(|termination| (stage, termination)));
    // Before `Opened`, no program has a connection that could end.
    let mut all: Vec<_> = all
        .filter(|(stage, termination)| *termination != Termination::Program || *stage >= GuestStage::Opened)
        .collect();
    let mut state = seed;
    for last in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(last, (state >> 33) as usize % (last + 1));
    }
    all
}

#[test]
fn any_termination_at_any_stage_leaves_others_running_and_leaks_nothing() {
    let mut world = Simulation::new();
    // The first round creates the resources that are created once and kept.
    world.round((GuestStage::Open, Termination::Host));
    let cost = world.cost();
    for seed in [1, 2, 3] {
        for what in matrix(seed) {
            println!("seed {seed}: {what:?}");
            world.round(what);
            world.until_cost(&cost, what);
        }
    }
}

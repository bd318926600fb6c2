//! Whoever ends, and whenever: the others hear of it or go on, and the host's daemon is left with nothing. Alone in its process, whose
//! descriptors and mappings it counts.
#![allow(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "server/bed.rs"]
mod bed;
#[expect(dead_code, reason = "as above")]
#[path = "server/guest.rs"]
mod guest;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use isthmus_control::schema::Status;
use isthmus_layout::border::{ANSWER_WORD, CALL_WORD, FrameKind};
use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_shm::Words as _;

use bed::{Bed, Client, name};
use guest::{Guest, configured, row, until_domains, until_row};

/// How far a guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Plugged,
    Called,
    Opened,
    Greeted,
    Attached,
    /// A program of the host knows the one of the guest.
    Known,
    /// A channel between two of its programs was asked for.
    Offered,
    /// Both have it.
    Open,
}

/// What ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// QEMU, or the device is unplugged.
    Machine,
    /// Its daemon is killed, and started again.
    Daemon,
    /// Its daemon is told to stop.
    Farewell,
    /// The program, by its connection.
    Program,
    /// The host's daemon, and there is another one.
    Host,
}

const STAGES: [Stage; 8] = [
    Stage::Plugged,
    Stage::Called,
    Stage::Opened,
    Stage::Greeted,
    Stage::Attached,
    Stage::Known,
    Stage::Offered,
    Stage::Open,
];
const DEATHS: [Death; 5] = [Death::Machine, Death::Daemon, Death::Farewell, Death::Program, Death::Host];

/// The flags of a listening socket in the kernel's list.
const LISTENING: &str = " 00010000 ";

/// What there is of what.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// Mappings of this process.
    maps: usize,
    /// Bytes of the other guest's window.
    used: Option<u64>,
    /// Descriptors of this process, by what they are of.
    fds: BTreeMap<String, usize>,
}

/// A daemon with a program of its host, and one of another guest, who both see it all.
struct World {
    bed: Bed,
    config: String,
    local: Client,
    neighbour: Guest,
    lives: u32,
}

impl World {
    fn new() -> Self {
        let config = configured("web", 32, 4) + &configured("db", 32, 4);
        let mut bed = Bed::kept_with(&config);
        let (local, _) = bed.attached("local");
        let mut neighbour = Guest::start_as(&bed, "db");
        neighbour.attach(1, "neighbour").unwrap();
        bed.until_kept(2);
        Self { bed, config, local, neighbour, lives: 0 }
    }

    /// Another daemon takes the place of this one.
    fn restart(&mut self) {
        // Its process lives and is waited for, unless it leaves in order.
        self.local.ask(Close {}, &[]).unwrap();
        self.bed.stop();
        self.bed.start_kept(&self.config);
        self.lives += 1;
        self.local = self.bed.attached(&format!("local{}", self.lives)).0;
        self.neighbour.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
        self.neighbour.call();
        self.neighbour.attach(1, "neighbour").unwrap();
    }

    /// A guest that has come so far, and its first domain.
    fn guest(&mut self, stage: Stage) -> (Guest, Option<DomainId>) {
        let mut guest = Guest::plug_in(&self.bed);
        if stage == Stage::Plugged {
            return (guest, None);
        }
        guest.wait_for_head();
        guest.call();
        if stage == Stage::Opened || stage == Stage::Greeted {
            guest.open(1);
        }
        if stage == Stage::Greeted {
            guest.say(1, Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") });
            guest.hear(1);
        }
        if stage < Stage::Attached {
            return (guest, None);
        }
        let (one, _) = guest.attach(1, "solver").unwrap();
        if stage >= Stage::Known {
            let found = self.local.ask(Lookup { name: name("solver") }, &[]).unwrap().message;
            assert!(matches!(found, ToClient::Found(_)), "{found:?}");
        }
        if stage >= Stage::Offered {
            let (other, _) = guest.attach(2, "other").unwrap();
            guest.say(1, RequestChannel { peer: other.domain, attempt: 1 });
            let channel = loop {
                if let (2, ToClient::ChannelOffer(offer), _) = guest.hear_any() {
                    break offer.channel;
                }
            };
            if stage == Stage::Open {
                guest.say(2, AcceptChannel { channel });
                while !matches!(guest.hear_any().1, ToClient::ChannelOpen(_)) {}
            }
        }
        (guest, Some(one.domain))
    }

    fn strike(&mut self, guest: Guest, death: Death) -> Option<Guest> {
        match death {
            Death::Machine => return None,
            Death::Daemon => {
                let mut guest = guest;
                guest.wait_for_head();
                guest.call();
                guest.attach(1, "again").unwrap();
                return Some(guest);
            }
            Death::Farewell => {
                guest.memory.store(CALL_WORD, 0, Ordering::Release);
                guest.ring();
            }
            Death::Program => {
                let mut guest = guest;
                guest.frame(FrameKind::Closed, 1, &[]);
                return Some(guest);
            }
            Death::Host => {
                self.bed.until_kept(4);
                self.restart();
            }
        }
        Some(guest)
    }

    /// What must be so whatever has ended.
    fn check_survivors(&mut self, domain: Option<DomainId>, (stage, death): (Stage, Death)) {
        if stage >= Stage::Known && death != Death::Host {
            let gone = self.local.hear_that(|heard| matches!(heard.message, ToClient::PeerGone(_))).message;
            assert!(matches!(&gone, ToClient::PeerGone(gone) if Some(gone.peer) == domain), "{gone:?}");
        }
        self.local.ask(Lookup { name: name("neighbour") }, &[]).unwrap();
        self.neighbour.say(1, Lookup { name: name("neighbour") });
        let found = self.neighbour.hear(1).0;
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

    /// What the daemon says once it has closed its ends of connections that are over: those of `local` and of the neighbour stay.
    fn settled(&mut self) -> Status {
        let begun = Instant::now();
        loop {
            let status: Status = self.local.report(Topic::Status, &[]).unwrap();
            if status.connections == 2 {
                return status;
            }
            assert!(begun.elapsed().as_secs() < 20, "{status:?}");
        }
    }

    /// Waits until the daemon has closed its end of the device's connection: it says `absent` a moment before.
    fn until_unplugged(&self) {
        let begun = Instant::now();
        let socket = row(&self.bed, "web").socket;
        let is_connection = |line: &str| line.ends_with(&socket) && !line.contains(LISTENING);
        while std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(is_connection) {
            assert!(begun.elapsed().as_secs() < 20, "somebody is connected to {socket} still");
        }
    }

    fn until_cost(&mut self, expected: &Cost, what: (Stage, Death)) {
        let begun = Instant::now();
        loop {
            let cost = self.cost();
            if cost == *expected {
                return;
            }
            assert!(begun.elapsed().as_secs() < 20, "{what:?}: {cost:?} instead of {expected:?}");
        }
    }

    fn round(&mut self, (stage, death): (Stage, Death)) {
        let (guest, domain) = self.guest(stage);
        let guest = self.strike(guest, death);
        self.check_survivors(domain, (stage, death));
        drop(guest);
        until_row(&self.bed, "web", |row| row.state.as_deref() == Some("absent"));
        until_domains(&self.bed, 2);
        self.bed.until_kept(2);
        self.until_unplugged();
    }
}

/// All of them, in an order that the seed decides.
fn matrix(seed: u64) -> Vec<(Stage, Death)> {
    let all = STAGES.into_iter().flat_map(|stage| DEATHS.map(|death| (stage, death)));
    // Nobody has opened a connection that could end.
    let mut all: Vec<_> = all.filter(|(stage, death)| *death != Death::Program || *stage >= Stage::Opened).collect();
    let mut state = seed;
    for last in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(last, (state >> 33) as usize % (last + 1));
    }
    all
}

#[test]
fn whoever_ends_at_whatever_stage_the_others_go_on_and_nothing_is_left() {
    let mut world = World::new();
    // What is made once and kept.
    world.round((Stage::Open, Death::Host));
    let cost = world.cost();
    for seed in [1, 2, 3] {
        for what in matrix(seed) {
            println!("seed {seed}: {what:?}");
            world.round(what);
            world.until_cost(&cost, what);
        }
    }
}

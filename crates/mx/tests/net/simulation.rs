//! Hosts on a wire. After every step, each message that its sender counts as delivered has arrived complete at its
//! destination.

use crate::host::{Host, HostConfig, posted};
use crate::wire::{Frame, NetConditions, Wire};
use isthmus_mx::StatusCode;
use isthmus_mx::net::Time;
use std::collections::BTreeSet;

/// The state of a simulation.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) now: Time,
    pub(crate) kind: HostConfig,
    pub(crate) hosts: Vec<Host>,
    pub(crate) wire: Wire,
    sends: u64,
    sessions: u32,
    /// Sends to a host that has restarted since.
    pub(crate) lost_with_host: BTreeSet<u64>,
    /// When a full link has room again.
    room_at: Vec<Option<Time>>,
}

impl Simulation {
    pub(crate) fn new(hosts: usize, kind: HostConfig, conditions: NetConditions, seed: u64) -> Self {
        Self {
            now: Time::from_us(1000),
            kind,
            hosts: (0..hosts).map(|number| Host::new(number, 1 + number as u32, &kind)).collect(),
            wire: Wire::new(hosts, conditions, seed),
            sends: 0,
            sessions: 1000,
            lost_with_host: BTreeSet::new(),
            room_at: vec![None; hosts],
        }
    }

    /// Connects each host to every other.
    pub(crate) fn connect_all(&mut self) {
        let hosts = self.hosts.len();
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            if from != to {
                self.hosts[from].connect(self.now, to, 77);
            }
        }
    }

    /// Starts a send, if the two hosts are connected.
    pub(crate) fn send(&mut self, from: usize, to: usize, length: u32, synchronous: bool) -> Option<u64> {
        self.sends += 1;
        let sent = self.hosts[from].send(self.now, to, self.sends, length, synchronous);
        sent.is_ok().then_some(self.sends)
    }

    /// Starts a send that fits into the receiver's buffer.
    pub(crate) fn send_whole(&mut self, from: usize, to: usize, length: u32) {
        while posted(self.sends + 1, length) < length {
            self.sends += 1;
        }
        self.send(from, to, length, false).unwrap();
    }

    /// Stops a host without notice and starts another in its place.
    pub(crate) fn restart(&mut self, number: usize) {
        for host in &self.hosts {
            let toward = host.sends.iter().filter(|(_, sending)| sending.to == number);
            self.lost_with_host.extend(toward.map(|(send, _)| *send));
        }
        self.sessions += 1;
        self.hosts[number] = Host::new(number, self.sessions, &self.kind);
    }

    /// Advances to the next event, if it is not after `until`. Returns false if there is none.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        self.pump();
        let deadlines = self.hosts.iter().filter_map(|host| host.endpoint.next_deadline());
        let rooms = self.room_at.iter().flatten().copied();
        let Some(next) = deadlines.chain(rooms).chain(self.wire.next_arrival()).min() else { return false };
        if next > until {
            self.now = until.max(self.now);
            return false;
        }
        self.now = next.max(self.now);
        while let Some(Frame { from, to, bytes }) = self.wire.arrived(self.now) {
            // Replies to a host that does not exist are dropped.
            if let Some(host) = self.hosts.get_mut(to) {
                host.receive(self.now, from, self.kind.dialect, &bytes);
            }
        }
        for host in &mut self.hosts {
            host.endpoint.tick(self.now);
            host.process_events(self.now, None);
        }
        self.check();
        true
    }

    /// Lets time pass.
    pub(crate) fn run_until(&mut self, until: Time) {
        while self.step(until) {}
    }

    /// Lets time pass until all sends are over and nothing is being received.
    pub(crate) fn run_until_quiet(&mut self, within_us: u64) {
        let until = self.now.after_us(within_us);
        while self.is_busy() {
            assert!(self.step(until), "{:?}: something never ends: {:#?}", self.now, self.hosts);
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.hosts
            .iter()
            .any(|host| host.underway() > 0 || host.sending > 0 || host.connected.values().any(Option::is_none))
    }

    fn pump(&mut self) {
        for number in 0..self.hosts.len() {
            self.room_at[number] = loop {
                if let Err(later) = self.wire.room(number, self.now) {
                    break Some(later);
                }
                let Some((to, bytes)) = self.hosts[number].transmit(self.now, self.kind.dialect) else { break None };
                self.wire.send(self.now, Frame { from: number, to, bytes });
            };
        }
        for host in &mut self.hosts {
            host.process_events(self.now, None);
        }
    }

    fn check(&mut self) {
        for number in 0..self.hosts.len() {
            let ended = std::mem::take(&mut self.hosts[number].just_ended);
            let host = &self.hosts[number];
            for (send, sending) in ended.iter().map(|send| (send, &host.sends[send])) {
                let Some(sent) = sending.ended else { continue };
                if sent.code != StatusCode::Success {
                    continue;
                }
                if self.lost_with_host.contains(send) {
                    continue;
                }
                // A message that could not be fetched ends as one of which the receiver took nothing.
                if sent.xfer_length == 0 && self.hosts[sending.to].failed.contains(send) {
                    continue;
                }
                let received = self.hosts[sending.to].whole.get(send).copied();
                let expected = [sending.length, posted(*send, sending.length)].contains(&sent.xfer_length);
                assert!(expected, "send {send} of {} bytes moved {}", sending.length, sent.xfer_length);
                assert_eq!(received, Some(sent.xfer_length), "send {send} of {} to {}", host.number, sending.to);
            }
        }
    }
}

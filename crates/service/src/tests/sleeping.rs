//! Workers on their threads: they sleep when no ring has a record, and wake for everything.

use super::fixture::{ServiceFixture, TestDomain, eager, to};
use crate::{Event, ServiceOptions};
use isthmus_channel::{ChannelSendError, WaitMode};
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::Record;
use isthmus_platform::Listen;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Only a missing wake-up waits so long.
const LIVENESS: Duration = Duration::from_secs(30);

impl TestDomain {
    /// Sleeps until the daemon sets a bit in our ready map, unless there is something to do.
    fn sleep_until(&mut self, ready: impl Fn(&mut Self) -> bool) {
        while !ready(self) {
            if self.channel.park().unwrap() {
                if self.ready_map.begin_sleep() && !ready(self) {
                    assert!(self.doorbell.wait(LIVENESS), "{} was not woken", self.id);
                }
                self.ready_map.end_sleep();
                self.ready_map.drain(|_| {});
            }
            self.channel.unpark();
        }
    }

    /// Sleeps until there is room for a record with `len` message bytes.
    fn room_sleeping(&mut self, len: u32) {
        self.sleep_until(|domain| {
            domain.channel.block();
            domain.channel.has_room(len).unwrap()
        });
    }

    fn receive_sleeping(&mut self) -> super::fixture::ReceivedRecord {
        self.sleep_until(|domain| domain.channel.has_record().unwrap());
        self.receive().unwrap()
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < LIVENESS, "{what} did not happen");
        std::thread::yield_now();
    }
}

fn asleep(fixture: &ServiceFixture) {
    let counters = &fixture.service.counters()[0];
    let woken = || counters.wakeups.load(Relaxed) + counters.timeouts.load(Relaxed);
    until("sleep", || counters.sleeps.load(Relaxed) == woken() + 1);
}

fn ping_pong(wait: WaitMode, workers: u8) {
    let mut fixture = ServiceFixture::threaded(ServiceOptions { wait, workers, ..ServiceOptions::default() });
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    let (a_id, b_id) = (a.id, b.id);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tag in 0..2000 {
                let arrived = b.receive_sleeping();
                assert_eq!(arrived.record, eager(tag, 4));
                b.send_credit(a_id, 132);
                b.send_eager(a_id, tag, &arrived.bytes);
                if tag % 2 == 1 {
                    while !matches!(b.receive_sleeping().record, Record::Credit { .. }) {}
                }
            }
        });
        for tag in 0..2000 {
            a.send_eager(b_id, tag, b"ping");
            while !matches!(a.receive_sleeping().record, Record::Eager { .. }) {}
            if tag % 2 == 1 {
                a.send_credit(b_id, 264);
            }
        }
    });
    assert_eq!(fixture.faults(), []);
}

#[test]
fn no_wake_up_is_lost_when_all_sleep() {
    ping_pong(WaitMode::Sleep, 1);
}

#[test]
fn no_wake_up_is_lost_between_workers() {
    ping_pong(WaitMode::Sleep, 2);
}

#[test]
fn no_wake_up_is_lost_when_all_spin_a_little() {
    ping_pong(WaitMode::Adaptive(Duration::from_micros(20)), 1);
}

#[test]
fn a_worker_with_nothing_to_do_sleeps_and_stays_asleep() {
    let mut fixture = ServiceFixture::threaded(ServiceOptions {
        wait: WaitMode::Adaptive(Duration::from_micros(50)),
        ..ServiceOptions::default()
    });
    let mut domains: Vec<_> = (0..100).map(|_| fixture.attach()).collect();
    let peer = domains[99].id;
    domains[0].send_eager(peer, 1, b"");
    domains[99].receive_sleeping();
    asleep(&fixture);
    let counters = &fixture.service.counters()[0];
    let sleeps = || counters.sleeps.load(Relaxed);
    // A ring that comes after its reason has been seen wakes once for nothing. After that: never.
    let mut before = 0;
    until("deep sleep", || {
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        std::mem::replace(&mut before, sleeps()) == sleeps()
    });
    for _ in 0..200_000 {
        std::thread::yield_now();
    }
    assert_eq!(sleeps(), before);
    let before = counters.wakeups.load(Relaxed);
    domains[1].send_eager(peer, 2, b"");
    domains[99].receive_sleeping();
    asleep(&fixture);
    assert!(counters.wakeups.load(Relaxed) <= before + 2, "one message, one wake-up");
}

#[test]
fn sleeping_worker_wakes_when_a_full_ring_has_room_again() {
    let mut fixture = ServiceFixture::threaded(ServiceOptions { wait: WaitMode::Sleep, ..ServiceOptions::default() });
    let (mut senders, mut b) = ([fixture.attach(), fixture.attach(), fixture.attach()], fixture.attach());
    for round in 0..30_u64 {
        let (mut sent, mut costs) = (0, [0; 3]);
        for (sender, cost) in senders.iter_mut().zip(&mut costs) {
            // Small and large alternately: now the ring is full, now the slab.
            while *cost + 128 + 8000 <= DAEMON_PATH_CREDIT_BYTES {
                let len = if (sent + round) % 3 == 0 { 8000 } else { 100 };
                sender.room_sleeping(len);
                match len {
                    100 => sender.send_eager(b.id, round, &[round as u8; 100]),
                    _ => sender.send_fragment(b.id, round, &vec![round as u8; 8000]),
                }
                (sent, *cost) = (sent + 1, *cost + 128 + len);
            }
        }
        asleep(&fixture);
        for _ in 0..sent {
            let arrived = b.receive_sleeping();
            assert!(arrived.bytes.iter().all(|&byte| byte == round as u8), "{arrived:?}");
        }
        for (sender, cost) in senders.iter_mut().zip(costs) {
            b.send_credit(sender.id, cost);
            assert_eq!(sender.receive_sleeping().record, Record::Credit { bytes: cost });
        }
    }
    assert!(fixture.service.counters()[0].held_records.load(Relaxed) > 30);
    assert_eq!(fixture.faults(), []);
}

#[test]
fn commands_wake_a_sleeping_worker_and_faults_reach_control() {
    let mut fixture =
        ServiceFixture::threaded(ServiceOptions { wait: WaitMode::Sleep, workers: 2, ..ServiceOptions::default() });
    let (mut a, b) = (fixture.attach(), fixture.attach());
    asleep(&fixture);
    fixture.remove(b.id, Reason::PeerConnectionLost);
    let heard = std::cell::RefCell::new(Vec::new());
    until("removal", || {
        heard.borrow_mut().extend(fixture.events());
        heard.borrow().contains(&Event::Removed { domain: b.id })
    });
    assert_eq!(
        a.try_send(isthmus_layout::record::Route { peer: None, ..to(b.id) }, eager(1, 0), &[]),
        Ok::<(), ChannelSendError>(())
    );
    until("fault", || {
        heard.borrow_mut().extend(fixture.events());
        heard.borrow().iter().any(|event| matches!(event, Event::Fault { domain, .. } if *domain == a.id))
    });
    fixture.service.end();
    heard.borrow_mut().extend(fixture.events());
    assert_eq!(heard.borrow().iter().filter(|event| matches!(event, Event::Stopped { .. })).count(), 2);
}

use super::*;
use rustix::event::EventfdFlags;
use rustix::fd::AsFd;

/// Calls of the program between two writes of the peer.
const CALLS: u32 = 5;

/// The serving thread of a program that makes calls, and then polls memory until a write of the peer has been performed. Time passes
/// only in sleeps.
struct Pingpong<'a> {
    handover: &'a Handover,
    /// Writes that are still to come.
    rounds: u32,
    /// A write waits to be performed.
    waits: bool,
    /// The peer has rung, and no sleep has ended by it yet.
    rings: bool,
    /// The write that waits was announced by a doorbell.
    announced: bool,
    /// Performed writes that were announced, and others.
    by_doorbell: u32,
    by_tick: u32,
}

impl<'a> Pingpong<'a> {
    fn watch(handover: &'a Handover, rounds: u32) -> Self {
        let mut pingpong =
            Self { handover, rounds, waits: false, rings: false, announced: false, by_doorbell: 0, by_tick: 0 };
        watch(&mut pingpong, handover);
        pingpong
    }
}

impl Server for Pingpong<'_> {
    fn set(&self) -> &SleepSet {
        &self.handover.thread
    }

    fn visit(&mut self, stays: bool) -> Visit {
        if self.waits {
            let count = if self.announced { &mut self.by_doorbell } else { &mut self.by_tick };
            *count += 1;
        }
        self.handover.note_visit(std::mem::take(&mut self.waits));
        if stays {
            self.handover.thread_sleeps();
        }
        Visit::Armed(None)
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Option<Woken> {
        if !self.waits {
            self.rounds = self.rounds.checked_sub(1)?;
            (0..CALLS).for_each(|_| self.handover.note_call());
            self.waits = true;
            // The peer rings if the last call has armed the domain.
            (self.announced, self.rings) = (self.handover.arms_after_calls(), self.handover.arms_after_calls());
            if limit.is_none() {
                return Some(Woken { called: true, rung: false });
            }
        }
        Some(Woken { called: false, rung: std::mem::take(&mut self.rings) })
    }
}

fn handover() -> Handover {
    let domain = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    Handover::new(domain.as_fd()).expect("descriptors")
}

#[test]
fn writes_to_a_program_that_polls_memory_wait_for_a_doorbell_and_not_for_a_tick() {
    let handover = handover();
    let Pingpong { by_doorbell, by_tick, .. } = Pingpong::watch(&handover, 1000);
    assert_eq!(by_doorbell + by_tick, 1000);
    assert!(by_tick <= 2, "{by_tick} of 1000 writes have waited for a tick");
}

#[test]
fn calls_arm_the_domain_no_more_when_no_peer_has_accessed_memory_for_a_while() {
    let handover = handover();
    assert!(!handover.arms_after_calls());
    Pingpong::watch(&handover, 10);
    let mut visits = 0;
    while handover.arms_after_calls() {
        handover.note_visit(false);
        visits += 1;
    }
    assert_eq!(visits, 8);
    handover.note_visit(false);
    assert!(!handover.arms_after_calls());
    handover.note_visit(true);
    assert!(handover.arms_after_calls());
}

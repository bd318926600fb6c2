//! There and back: one frame under way.

use std::time::{Duration, Instant};

use super::note::Note;
use super::{End, Plan, RawError};
use crate::Link;

/// Round trips that were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReport {
    /// How many.
    pub rounds: u64,
    /// How many of them needed more than one frame, because one was lost.
    pub repeated: u64,
    /// All together.
    pub took: Duration,
}

/// Makes the plan's round trips, and tells `each` how long one took.
pub fn ping(link: &mut dyn Link, plan: &Plan, mut each: impl FnMut(Duration)) -> Result<PingReport, RawError> {
    let mut end = End::new(link, plan);
    let mut notes = Vec::new();
    let mut repeated = 0;
    let start = Instant::now();
    for round in 0..plan.count {
        let sent = Instant::now();
        while end.send(Note::Ping, round, 1, true)? == 0 {}
        loop {
            end.receive(&mut notes, true)?;
            if notes.contains(&Note::Pong(round)) {
                break;
            }
            if notes.is_empty() {
                end.check_patience()?;
                repeated += 1;
                while end.send(Note::Ping, round, 1, true)? == 0 {}
            }
        }
        each(sent.elapsed());
    }
    let took = start.elapsed();
    end.tell(Note::Done)?;
    Ok(PingReport { rounds: plan.count, repeated, took })
}

/// Sends back what comes, until the other end says that this was all: how many.
pub fn pong(link: &mut dyn Link, plan: &Plan) -> Result<u64, RawError> {
    let mut end = End::new(link, plan);
    let mut notes = Vec::new();
    let mut answered = 0;
    loop {
        end.receive(&mut notes, true)?;
        if notes.is_empty() {
            match end.check_patience() {
                Err(RawError::Silent { .. }) if answered >= plan.count => notes.push(Note::Done), // It was lost.
                outcome => outcome?,
            }
        }
        for note in &notes {
            match *note {
                Note::Ping(round) => {
                    while end.send(|_| Note::Pong(round), 0, 1, true)? == 0 {}
                    answered += 1;
                }
                Note::Done => return Ok(answered),
                _ => {}
            }
        }
    }
}

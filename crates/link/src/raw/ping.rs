//! There and back: one frame under way.

use std::time::{Duration, Instant};

use super::message::RawMessage;
use super::{MeasurementEnd, MeasurementPlan, RawError};
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
pub fn ping(
    link: &mut dyn Link,
    plan: &MeasurementPlan,
    mut each: impl FnMut(Duration),
) -> Result<PingReport, RawError> {
    let mut end = MeasurementEnd::new(link, plan);
    let mut messages = Vec::new();
    let mut repeated = 0;
    let start = Instant::now();
    for round in 0..plan.count {
        let sent = Instant::now();
        while end.send(RawMessage::Ping, round, 1, true)? == 0 {}
        loop {
            end.receive(&mut messages, true)?;
            if messages.contains(&RawMessage::Pong(round)) {
                break;
            }
            if messages.is_empty() {
                end.check_timeout()?;
                repeated += 1;
                while end.send(RawMessage::Ping, round, 1, true)? == 0 {}
            }
        }
        each(sent.elapsed());
    }
    let took = start.elapsed();
    end.send_one(RawMessage::Done)?;
    Ok(PingReport { rounds: plan.count, repeated, took })
}

/// Sends back what comes, until the other end says that this was all: how many.
pub fn pong(link: &mut dyn Link, plan: &MeasurementPlan) -> Result<u64, RawError> {
    let mut end = MeasurementEnd::new(link, plan);
    let mut messages = Vec::new();
    let mut answered = 0;
    loop {
        end.receive(&mut messages, true)?;
        if messages.is_empty() {
            match end.check_timeout() {
                Err(RawError::Timeout { .. }) if answered >= plan.count => messages.push(RawMessage::Done), // It was lost.
                outcome => outcome?,
            }
        }
        for message in &messages {
            match *message {
                RawMessage::Ping(round) => {
                    while end.send(|_| RawMessage::Pong(round), 0, 1, true)? == 0 {}
                    answered += 1;
                }
                RawMessage::Done => return Ok(answered),
                _ => {}
            }
        }
    }
}

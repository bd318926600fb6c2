//! Measures round trips with one frame in flight.

use std::time::{Duration, Instant};

use super::message::RawMessage;
use super::{MeasurementEnd, MeasurementPlan, RawError};
use crate::Link;

/// The result of measured round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingReport {
    /// The number of round trips.
    pub rounds: u64,
    /// The number of round trips that needed more than one frame, because one was lost.
    pub repeated: u64,
    /// The total duration.
    pub took: Duration,
}

/// Makes the plan's round trips, and passes the duration of each to `each`.
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

/// Sends back each message until the other end reports the end of the measurement; returns their number.
pub fn pong(link: &mut dyn Link, plan: &MeasurementPlan) -> Result<u64, RawError> {
    let mut end = MeasurementEnd::new(link, plan);
    let mut messages = Vec::new();
    let mut answered = 0;
    loop {
        end.receive(&mut messages, true)?;
        if messages.is_empty() {
            match end.check_timeout() {
                Err(RawError::Timeout { .. }) if answered >= plan.count => messages.push(RawMessage::Done), // The final message was lost.
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

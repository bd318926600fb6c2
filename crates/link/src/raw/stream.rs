//! Measures one direction: a window of frames, acknowledged by number.

use std::time::{Duration, Instant};

use super::message::RawMessage;
use super::{MeasurementEnd, MeasurementPlan, RawError};
use crate::Link;

/// The result of a measured stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// The number of frames sent, or received.
    pub frames: u64,
    /// The number of bytes in these frames.
    pub bytes: u64,
    /// The time from the first frame to the last.
    pub took: Duration,
    /// The number of times the sender had to ask for progress.
    pub asked: u64,
}

/// Sends the plan's frames, and returns when the other end has acknowledged all.
pub fn stream_out(link: &mut dyn Link, plan: &MeasurementPlan) -> Result<StreamReport, RawError> {
    let mut end = MeasurementEnd::new(link, plan);
    let (mut next, mut acked, mut asked) = (0, 0, 0);
    let mut messages = Vec::new();
    let start = Instant::now();
    while acked < plan.count {
        let room = (plan.window - (next - acked)).min(plan.count - next);
        if room > 0 {
            next += end.send(RawMessage::Data, next, room.min(plan.batch as u64) as usize, true)? as u64;
        }
        if room > plan.window / 2 {
            continue; // Acknowledgements are not needed yet.
        }
        end.receive(&mut messages, room == 0)?;
        if messages.is_empty() && room == 0 {
            end.check_timeout()?;
            end.send_one(RawMessage::Probe(next))?;
            asked += 1;
        }
        for message in &messages {
            if let RawMessage::Ack(number) = *message {
                acked = number.clamp(acked, next);
            }
        }
    }
    let took = start.elapsed();
    end.send_one(RawMessage::Done)?;
    Ok(StreamReport { frames: next, bytes: next * plan.frame_bytes as u64, took, asked })
}

/// Receives the plan's frames, and returns when the sender reports the end.
pub fn stream_in(link: &mut dyn Link, plan: &MeasurementPlan) -> Result<StreamReport, RawError> {
    let mut end = MeasurementEnd::new(link, plan);
    let (mut frames, mut passed, mut acked, mut asked) = (0, 0, 0, 0);
    let mut messages = Vec::new();
    let (mut first, mut last) = (None, Instant::now());
    loop {
        end.receive(&mut messages, true)?;
        if messages.is_empty() {
            match end.check_timeout() {
                Err(RawError::Timeout { .. }) if passed >= plan.count => messages.push(RawMessage::Done), // The final message was lost.
                outcome => outcome?,
            }
        }
        let mut is_asked = false;
        for message in &messages {
            match *message {
                RawMessage::Data(number) => {
                    frames += 1;
                    passed = passed.max(number.saturating_add(1));
                }
                RawMessage::Probe(sent) => {
                    passed = passed.max(sent);
                    (is_asked, asked) = (true, asked + 1);
                }
                RawMessage::Done => {
                    let took = first.map_or(Duration::ZERO, |first| last.saturating_duration_since(first));
                    return Ok(StreamReport { frames, bytes: frames * plan.frame_bytes as u64, took, asked });
                }
                _ => {}
            }
        }
        if !messages.is_empty() && passed > acked {
            last = Instant::now();
            first.get_or_insert(last);
        }
        if is_asked || passed - acked >= plan.ack_interval || (passed == plan.count && acked < passed) {
            end.send_one(RawMessage::Ack(passed))?;
            acked = passed;
        }
    }
}

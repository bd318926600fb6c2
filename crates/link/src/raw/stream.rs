//! One way: a window of frames, acknowledged by number.

use std::time::{Duration, Instant};

use super::note::Note;
use super::{End, Plan, RawError};
use crate::Link;

/// What went, or came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// Frames that were sent, or have come.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// From the first to the last.
    pub took: Duration,
    /// How often the sender had to ask.
    pub asked: u64,
}

/// Sends the plan's frames, and returns when the other end has told that it is through.
pub fn stream_out(link: &mut dyn Link, plan: &Plan) -> Result<StreamReport, RawError> {
    let mut end = End::new(link, plan);
    let (mut next, mut acked, mut asked) = (0, 0, 0);
    let mut notes = Vec::new();
    let start = Instant::now();
    while acked < plan.count {
        let room = (plan.window - (next - acked)).min(plan.count - next);
        if room > 0 {
            next += end.send(Note::Data, next, room.min(plan.batch as u64) as usize, true)? as u64;
        }
        if room > plan.window / 2 {
            continue; // No need to look for acknowledgements yet.
        }
        end.receive(&mut notes, room == 0)?;
        if notes.is_empty() && room == 0 {
            end.check_patience()?;
            end.tell(Note::Ask(next))?;
            asked += 1;
        }
        for note in &notes {
            if let Note::Ack(number) = *note {
                acked = number.clamp(acked, next);
            }
        }
    }
    let took = start.elapsed();
    end.tell(Note::Done)?;
    Ok(StreamReport { frames: next, bytes: next * plan.frame_bytes as u64, took, asked })
}

/// Receives the plan's frames, and returns when the sender says that this was all.
pub fn stream_in(link: &mut dyn Link, plan: &Plan) -> Result<StreamReport, RawError> {
    let mut end = End::new(link, plan);
    let (mut frames, mut passed, mut told, mut asked) = (0, 0, 0, 0);
    let mut notes = Vec::new();
    let (mut first, mut last) = (None, Instant::now());
    loop {
        end.receive(&mut notes, true)?;
        if notes.is_empty() {
            match end.check_patience() {
                Err(RawError::Silent { .. }) if passed >= plan.count => notes.push(Note::Done), // It was lost.
                outcome => outcome?,
            }
        }
        let mut is_asked = false;
        for note in &notes {
            match *note {
                Note::Data(number) => {
                    frames += 1;
                    passed = passed.max(number.saturating_add(1));
                }
                Note::Ask(sent) => {
                    passed = passed.max(sent);
                    (is_asked, asked) = (true, asked + 1);
                }
                Note::Done => {
                    let took = first.map_or(Duration::ZERO, |first| last.saturating_duration_since(first));
                    return Ok(StreamReport { frames, bytes: frames * plan.frame_bytes as u64, took, asked });
                }
                _ => {}
            }
        }
        if !notes.is_empty() && passed > told {
            last = Instant::now();
            first.get_or_insert(last);
        }
        if is_asked || passed - told >= plan.ack_each || (passed == plan.count && told < passed) {
            end.tell(Note::Ack(passed))?;
            told = passed;
        }
    }
}

//! The last part of a report, which another thread does: its JSON. What all reports say in the same way.

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::reason::Reason;
use serde::Serialize;

/// The rest of a report that any thread can make: its JSON.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<Vec<u8>, Refusal> + Send>;

/// Lets another thread write a report.
pub(crate) fn finish(report: impl Serialize + Send + 'static) -> Finish {
    Box::new(move || json(&report))
}

pub(crate) fn json(report: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(report).map_err(|error| Refusal::new(Reason::RequestInvalid, error.to_string()))
}

/// The number of rows that the viewer does not see.
pub(crate) fn hidden(all: usize, visible: usize) -> Option<u32> {
    Some(all.saturating_sub(visible) as u32)
}

pub(crate) fn wrong_arguments(expected: &str, arguments: &[Name]) -> Refusal {
    let text = format!("this report takes {expected} arguments, not {}", arguments.len());
    Refusal::new(Reason::RequestInvalid, text)
}

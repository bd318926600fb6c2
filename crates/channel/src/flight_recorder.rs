//! The last events of a channel, kept in a small ring of its own and written out when the channel dies.

use std::fmt;

/// Events kept.
const EVENTS: usize = 16;

/// Something that happened on a channel; never a message, which would be too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// It was made.
    Opened,
    /// Its receiver stopped looking at it.
    Parked,
    /// Its peer set its bit in our ready map.
    Woken,
    /// We had no room and said so.
    Blocked,
    /// Pages of an idle slab were given back.
    Trimmed,
    /// The peer broke the contract.
    Faulted,
    /// It was closed.
    Closed,
}

/// A ring of the last events with the channel's message counts at the time.
#[derive(Clone, Debug, Default)]
pub struct FlightRecorder {
    events: [Option<(ChannelEvent, u64)>; EVENTS],
    next: usize,
}

impl FlightRecorder {
    /// Notes an event; `messages` says when, in messages sent.
    pub fn note(&mut self, event: ChannelEvent, messages: u64) {
        self.events[self.next % EVENTS] = Some((event, messages));
        self.next += 1;
    }
}

impl fmt::Display for FlightRecorder {
    /// Oldest first: `opened@0 parked@12 faulted@13`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for at in self.next..self.next + EVENTS {
            if let Some((event, messages)) = self.events[at % EVENTS] {
                write!(f, "{space}{}@{messages}", format!("{event:?}").to_lowercase())?;
                space = " ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_events_are_kept_in_order() {
        let mut recorder = FlightRecorder::default();
        recorder.note(ChannelEvent::Opened, 0);
        for at in 0..EVENTS as u64 {
            recorder.note(ChannelEvent::Parked, at);
        }
        let text = recorder.to_string();
        assert!(text.starts_with("parked@0 parked@1") && text.ends_with("parked@15"), "{text}");
    }
}

//! A small ring of a channel's last events, written out when the channel fails.

use std::fmt;

/// Number of events kept.
const EVENTS: usize = 16;

/// An event on a channel. Messages are not recorded, because they would displace everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The channel was created.
    Opened,
    /// The receiver stopped polling the channel.
    Parked,
    /// The peer set the channel's bit in our ready map.
    Woken,
    /// The sender found no room and asked to be woken.
    Blocked,
    /// Pages of an idle slab were returned to the system.
    Trimmed,
    /// The peer violated the protocol.
    Faulted,
    /// The channel was closed.
    Closed,
}

/// The last events of a channel, each with the channel's message count at that time.
#[derive(Clone, Debug, Default)]
pub struct FlightRecorder {
    events: [Option<(ChannelEvent, u64)>; EVENTS],
    next: usize,
}

impl FlightRecorder {
    /// Records an event; `messages` is the number of messages sent so far.
    pub fn note(&mut self, event: ChannelEvent, messages: u64) {
        self.events[self.next % EVENTS] = Some((event, messages));
        self.next += 1;
    }
}

impl fmt::Display for FlightRecorder {
    /// Writes the oldest event first: `opened@0 parked@12 faulted@13`.
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
    fn keeps_only_the_last_events_in_order() {
        let mut recorder = FlightRecorder::default();
        recorder.note(ChannelEvent::Opened, 0);
        for at in 0..EVENTS as u64 {
            recorder.note(ChannelEvent::Parked, at);
        }
        let text = recorder.to_string();
        assert!(text.starts_with("parked@0 parked@1") && text.ends_with("parked@15"), "{text}");
    }
}

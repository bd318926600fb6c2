//! A network that loses, duplicates, delays and reorders frames, in virtual time.

use crate::random::Random;
use isthmus_mx::net::Time;
use std::collections::BTreeMap;

/// The faults of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetConditions {
    pub(crate) loss_per_million: u64,
    pub(crate) repeat_per_million: u64,
    /// The rate of delayed frames, which others overtake.
    pub(crate) late_per_million: u64,
    pub(crate) late_us: u64,
    pub(crate) delay_us: u64,
    /// The number of bytes that a host can send in a millisecond.
    pub(crate) bytes_per_ms: u64,
    /// The switch, if there is one.
    pub(crate) switch: Option<Switch>,
}

/// A switch's line to each host: slower than the hosts' links, with a queue before it. Frames that do not fit into the queue are
/// lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    pub(crate) bytes_per_ms: u64,
    pub(crate) queue_bytes: u64,
}

impl NetConditions {
    /// 1 GB/s, 20 µs, no faults.
    pub(crate) const FINE: Self = Self {
        loss_per_million: 0,
        repeat_per_million: 0,
        late_per_million: 0,
        late_us: 0,
        delay_us: 20,
        bytes_per_ms: 1_000_000,
        switch: None,
    };
}

/// A frame in flight.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The frames in flight, and the times until which links are busy.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) conditions: NetConditions,
    random: Random,
    flying: BTreeMap<(Time, u64), Frame>,
    count: u64,
    /// The end of the transmission of each host's link, in nanoseconds.
    busy_until_ns: Vec<u64>,
    /// The end of the transmission of the switch's line to each host.
    line_busy_until_ns: Vec<u64>,
    /// The directions that are cut, with the end of the cut.
    cuts: BTreeMap<(usize, usize), Time>,
}

/// The backlog at which a link reports that it is full.
const LINK_QUEUE_NS: u64 = 50_000;

impl Wire {
    pub(crate) fn new(hosts: usize, conditions: NetConditions, seed: u64) -> Self {
        let random = Random::new(seed);
        Self {
            conditions,
            random,
            flying: BTreeMap::new(),
            count: 0,
            busy_until_ns: vec![0; hosts],
            line_busy_until_ns: vec![0; hosts],
            cuts: BTreeMap::new(),
        }
    }

    /// Returns the current time if the host's link has room, otherwise the time at which it will.
    pub(crate) fn room(&self, host: usize, now: Time) -> Result<(), Time> {
        let full_until_ns = self.busy_until_ns[host].saturating_sub(LINK_QUEUE_NS);
        if full_until_ns <= now.us() * 1000 { Ok(()) } else { Err(Time::from_us(full_until_ns.div_ceil(1000))) }
    }

    pub(crate) fn send(&mut self, now: Time, frame: Frame) {
        let start = self.busy_until_ns[frame.from].max(now.us() * 1000);
        let end = start + frame.bytes.len() as u64 * 1_000_000 / self.conditions.bytes_per_ms;
        self.busy_until_ns[frame.from] = end;
        if self.cuts.get(&(frame.from, frame.to)).is_some_and(|until| now < *until) {
            return;
        }
        let Some(end) = self.switched(end, &frame) else { return };
        let NetConditions { loss_per_million, repeat_per_million, late_per_million, late_us, delay_us, .. } =
            self.conditions;
        let times = if self.random.chance(loss_per_million) { 0 } else { 1 }
            + if self.random.chance(repeat_per_million) { 1 } else { 0 };
        for _ in 0..times {
            let late = if self.random.chance(late_per_million) { self.random.below(late_us + 1) } else { 0 };
            let at = Time::from_us(end / 1000 + delay_us + late);
            self.count += 1;
            let Frame { from, to, ref bytes } = frame;
            self.flying.insert((at, self.count), Frame { from, to, bytes: bytes.clone() });
        }
    }

    /// Returns when a sent frame leaves the switch. `None` if it finds the queue full.
    fn switched(&mut self, sent_ns: u64, frame: &Frame) -> Option<u64> {
        let Some(Switch { bytes_per_ms, queue_bytes }) = self.conditions.switch else { return Some(sent_ns) };
        let Some(busy_until_ns) = self.line_busy_until_ns.get_mut(frame.to) else { return Some(sent_ns) };
        let takes_ns = |bytes: u64| bytes * 1_000_000 / bytes_per_ms;
        let start = sent_ns.max(*busy_until_ns);
        let bytes = frame.bytes.len() as u64;
        if start - sent_ns + takes_ns(bytes) > takes_ns(queue_bytes) {
            return None;
        }
        *busy_until_ns = start + takes_ns(bytes);
        Some(*busy_until_ns)
    }

    /// Drops all frames from one host to another until a time.
    pub(crate) fn cut(&mut self, from: usize, to: usize, until: Time) {
        self.cuts.insert((from, to), until);
    }

    /// Returns when the next frame arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns a frame that has arrived.
    pub(crate) fn arrived(&mut self, now: Time) -> Option<Frame> {
        let first = self.flying.first_entry()?;
        if first.key().0 <= now { Some(first.remove()) } else { None }
    }

    /// Returns the number of sent frames.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

//! The entries of a set, and its hot and parked streams: what the set has under its lock.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::collections::HashMap;

use isthmus_channel::wait::AdaptiveSpin;
use isthmus_layout::SlotTable;
use isthmus_layout::limits::READY_MAP_BITS;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{Interest, Want};
use libc::epoll_event;

use crate::connection::{Connection, Stream};
use crate::copy::{self, Fault};
use crate::epoll_set::EpollSet;
use crate::interest::Entry;
use crate::shared_cell::SharedCell;
use crate::table::InUse;
use crate::waiter::Waiter;

/// The low bits of an entry's name, which are its place. The other ones differ from those of the entries that had the place before, so an
/// old name of a link or a token finds no other entry.
const PLACE_BITS: u32 = 20;
pub(crate) const PLACE: u32 = (1 << PLACE_BITS) - 1;

/// Streams that are checked on each call.
const HOT_MAX: usize = 64;
/// Calls without a change after which a stream is parked, if others are hot.
const PARK_AFTER: u32 = 256;

/// The part of a set that is used under its lock.
#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) entries: SlotTable<Entry>,
    /// Entries so far.
    made: u32,
    pub(crate) by_fd: HashMap<c_int, u32>,
    pub(crate) hot: Vec<u32>,
    next_hot: usize,
    pub(crate) waiter: Option<Waiter>,
    /// The kernel's set has the waiter's second descriptor.
    pub(crate) has_bells: bool,
    pub(crate) spin: Option<AdaptiveSpin>,
    pub(crate) calls: u32,
    /// An end of a stream belongs to several processes. It stays true until the set ends.
    pub(crate) has_forked: bool,
    /// Sets in this one. They stay until the set ends.
    pub(crate) contained: Vec<InUse<EpollSet>>,
    /// A child has the set, too. The number is not 0 once a child has waited in its copy.
    pub(crate) copy: Option<SharedCell>,
    /// This process is the child.
    pub(crate) is_copy: bool,
    /// Streams that must go back to TCP.
    pub(crate) asked: Vec<(c_int, InUse<Connection>)>,
}

impl Inner {
    /// Notes that a child waits in its copy of the set. Its parent gives the set no further streams.
    pub(crate) fn note_copy(&mut self) {
        if let (true, Some(copy)) = (self.is_copy, &self.copy) {
            copy.store(1, Ordering::Release);
        }
    }

    /// Stops watching the stream of an entry. Returns its descriptor, and the event to register in the kernel again.
    pub(crate) fn end_stream(&mut self, at: u32) -> Option<(c_int, Option<epoll_event>)> {
        self.hot.retain(|hot| *hot != at);
        let entry = self.entry(at).filter(|entry| entry.is_stream)?;
        // A call of the kernel would arm an entry that is not armed. Its token stays until the program arms it.
        let stays = entry.is_orphan || entry.is_removed || entry.is_unarmed();
        (entry.is_stream, entry.is_hot) = (false, false);
        let event = epoll_event { events: entry.events, u64: entry.data };
        Some((entry.fd, (!stays).then_some(event)))
    }

    /// Makes an entry. Returns its name.
    pub(crate) fn insert(&mut self, fd: c_int, connection: &InUse<Connection>, event: epoll_event, waits: u32) -> u32 {
        self.made = self.made.wrapping_add(1);
        let name = self.made << PLACE_BITS;
        let new = |place| Entry::new(name | place, fd, connection.clone(), event, waits);
        let at = name | self.entries.insert_with(new);
        self.by_fd.insert(fd, at);
        at
    }

    pub(crate) fn entry(&mut self, at: u32) -> Option<&mut Entry> {
        entry_in(&mut self.entries, at)
    }

    /// The entry of a descriptor.
    pub(crate) fn entry_of(&mut self, fd: c_int) -> Option<&mut Entry> {
        let at = self.by_fd.get(&fd).copied()?;
        self.entry(at)
    }

    /// The entries of hot streams.
    fn hot_entries(&self) -> impl Iterator<Item = &Entry> {
        self.hot.iter().filter_map(|at| self.entries.get(at & PLACE))
    }

    /// Returns true if the kernel is likely to have an event of a hot stream.
    pub(crate) fn needs_kernel(&self) -> bool {
        self.hot_entries().any(Entry::needs_kernel)
    }

    /// Returns true if the program waits for room in a full ring.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.hot_entries().any(Entry::waits_for_room)
    }

    /// Makes a stream hot.
    pub(crate) fn heat(&mut self, at: u32) {
        let Some(connection) = self.entry(at).filter(|entry| entry.is_stream).map(|entry| entry.connection.clone())
        else {
            return;
        };
        if let Some(stream) = connection.stream() {
            self.heat_stream(at, stream);
        }
    }

    pub(crate) fn heat_stream(&mut self, at: u32, stream: &Stream) {
        let Some(hot) = self.waiter.as_ref().map(Waiter::hot) else { return };
        let Some(entry) = self.entry(at) else { return };
        entry.quiet = 0;
        let (connection, was_hot) = (entry.connection.clone(), core::mem::replace(&mut entry.is_hot, true));
        self.has_forked |= connection.has_forked(stream);
        if !connection.wish_in_use(Interest::Data).load(Ordering::Relaxed) {
            stream.memory.set_want(Interest::Data, hot);
        }
        self.wish_room(at, stream);
        if !was_hot {
            if self.hot.len() >= HOT_MAX {
                self.park_quietest();
            }
            self.hot.push(at);
        }
    }

    /// Sets the wish of a stream for room, or withdraws it: without a wish, a peer that reads rings no doorbell.
    pub(crate) fn wish_room(&mut self, at: u32, stream: &Stream) {
        let Some(waiter) = &self.waiter else { return };
        let Some(entry) = entry_in(&mut self.entries, at).filter(|entry| entry.is_stream) else { return };
        set_room_wish(entry, stream, if entry.is_hot { waiter.hot() } else { waiter.parked(ready_bit(at)) });
    }

    fn park_quietest(&mut self) {
        let quietest = self.hot_entries().enumerate().max_by_key(|(_, entry)| entry.quiet).map(|(index, _)| index);
        if let Some(index) = quietest {
            self.park(index);
        }
    }

    /// Parks the hot stream at `index`. If something has arrived meanwhile, its ready bit is set at once.
    fn park(&mut self, index: usize) {
        let at = self.hot.swap_remove(index);
        let Some(waiter) = &self.waiter else { return };
        let ready_bit = ready_bit(at);
        let want = waiter.parked(ready_bit);
        let Some(entry) = entry_in(&mut self.entries, at) else { return };
        entry.is_hot = false;
        let connection = entry.connection.clone();
        let Some(stream) = connection.stream() else { return };
        stream.memory.set_want(Interest::Data, want);
        if entry.waits_for_room() {
            connection.leave_rings(); // Nothing would look whether the peer reads.
            self.asked.push((entry.fd, connection.clone()));
        }
        set_room_wish(entry, stream, want);
        if entry.ready() != 0 {
            stream.board.memory.notify(want);
        }
    }

    /// Makes streams hot if their ready bits are set.
    fn take_ready_bits(&mut self) {
        let Some(waiter) = self.waiter.as_ref().filter(|waiter| waiter.is_any_set()) else { return };
        let mut found = Vec::new();
        waiter.drain(|board, bit| found.push((board, bit.number())));
        for (board, number) in found {
            for place in (u32::from(number)..self.entries.slots() as u32).step_by(READY_MAP_BITS as usize) {
                // Peers of one owner do not heat the streams of another one.
                if let Some(at) = self.entries.get(place).filter(|entry| entry.is_of(board)).map(|entry| entry.at) {
                    self.heat(at);
                }
            }
        }
    }

    /// Notes which hot streams must go back to TCP.
    pub(crate) fn find_asked(&mut self) {
        self.take_ready_bits();
        let asked = self.hot_entries().filter(|entry| entry.is_asked());
        let asked: Vec<_> = asked.map(|entry| (entry.fd, entry.connection.clone())).collect();
        self.asked.extend(asked);
    }

    /// Returns true if a stream is ready that the program waits for.
    pub(crate) fn is_any_ready(&mut self) -> bool {
        self.take_ready_bits();
        if !self.asked.is_empty() {
            return true;
        }
        let (entries, hot) = (&mut self.entries, &self.hot);
        hot.iter().any(|at| entry_in(entries, *at).is_some_and(|entry| entry.ready() != 0 || entry.is_asked()))
    }

    /// Adds the events of streams to the first `count` of `events`, which the kernel has. `placed`: the streams among those. Returns the
    /// number of all.
    pub(crate) fn collect(
        &mut self,
        events: &mut [epoll_event],
        count: usize,
        placed: &[(u32, usize)],
    ) -> Result<usize, Fault> {
        self.take_ready_bits();
        let (mut total, mut silent, mut written) = (count, None, Ok(()));
        let (hot_len, hot) = (self.hot.len(), self.waiter.as_ref().map(Waiter::hot));
        for index in (self.next_hot.min(hot_len)..hot_len).chain(0..self.next_hot.min(hot_len)) {
            let at = self.hot[index];
            let Some(entry) = entry_in(&mut self.entries, at) else { continue };
            if entry.is_asked() {
                self.asked.push((entry.fd, entry.connection.clone()));
            }
            let ready = entry.ready();
            if ready == 0 {
                entry.quiet = entry.quiet.saturating_add(1);
                silent = silent.or((entry.quiet > PARK_AFTER && hot_len > 1).then_some(at));
                continue;
            }
            entry.quiet = 0;
            if let (Some(waiter), Some(stream)) = (&self.waiter, entry.connection.stream()) {
                waiter.found(&stream.board);
            }
            if let Some((_, place)) = placed.iter().find(|(placed, _)| *placed == at) {
                events[*place].events |= ready;
            } else if let Some(place) = events.get_mut(total) {
                // SAFETY: a place in the program's array, of which the kernel has not written all.
                written = unsafe { copy::write(place, epoll_event { events: ready, u64: entry.data }) };
                if written.is_err() {
                    break;
                }
                total += 1;
            } else {
                self.next_hot = index; // The next call begins here.
                break;
            }
            entry.reported(ready);
            if let (Some(hot), Some(stream), false) = (hot, entry.connection.stream(), entry.wishes_room()) {
                set_room_wish(entry, stream, hot);
            }
        }
        if let Some(at) = silent
            && let Some(index) = self.hot.iter().position(|hot| *hot == at)
        {
            self.park(index);
        }
        if total > 0 { Ok(total) } else { written.map(|()| 0) }
    }

    /// Rings this set's own doorbell if the entry is ready and threads sleep in the set.
    pub(crate) fn kick(&mut self, at: u32, sleepers: u32) {
        if sleepers > 0
            && self.entry(at).is_some_and(|entry| entry.ready() != 0 || entry.is_asked())
            && let Some(waiter) = &self.waiter
        {
            waiter.ring();
        }
    }

    /// Lets other threads sleep on in the set, which this one has left. What is ready now wakes the next one.
    pub(crate) fn pass_on(&mut self) {
        let Some(waiter) = &self.waiter else { return };
        let is_quiet = waiter.begin_sleep();
        if (!is_quiet || self.is_any_ready())
            && let Some(waiter) = &self.waiter
        {
            waiter.ring();
        }
    }
}

fn entry_in(entries: &mut SlotTable<Entry>, at: u32) -> Option<&mut Entry> {
    entries.get_mut(at & PLACE).filter(|entry| entry.at == at)
}

/// Sets the wish for room if the entry has one, and withdraws it otherwise, unless a thread uses it.
fn set_room_wish(entry: &Entry, stream: &Stream, want: Want) {
    if entry.connection.wish_in_use(Interest::Room).load(Ordering::Relaxed) {
        return;
    }
    if entry.wishes_room() {
        stream.memory.set_want(Interest::Room, want);
    } else if stream.memory.want_raw(Interest::Room) != 0 {
        stream.memory.clear_want(Interest::Room);
    }
}

fn ready_bit(at: u32) -> ReadyBit {
    ReadyBit::new((at % READY_MAP_BITS) as u16).unwrap_or(ReadyBit::CONTROL)
}

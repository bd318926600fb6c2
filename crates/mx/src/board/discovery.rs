//! Announcements (mxoe-wire 5.2). A board announces itself several times in a row and then at longer intervals. A board that
//! receives an announcement of a new peer starts again with several in a row.

use super::table::{AddPeerError, PeerOrigin};
use super::{Board, BoardEvent, BoardTuning, Dropped, LinkNumber};
use crate::net::Time;
use crate::wire::{Announcement, BROADCAST, Header, Packet, PeerIndex, Raw};

/// The timer of announcements.
#[derive(Debug)]
pub(super) struct AnnounceTimer {
    /// The number of announcements left in the current burst.
    remaining: u32,
    due: Time,
    last: Option<Time>,
}

impl AnnounceTimer {
    pub(super) fn new(tuning: &BoardTuning) -> Self {
        Self { remaining: tuning.burst, due: Time::ZERO, last: None }
    }

    pub(super) const fn due(&self) -> Time {
        self.due
    }

    /// Starts a burst at `at`, or earlier if an announcement was due earlier. Announcements never follow each other
    /// faster than in a burst.
    pub(super) fn restart(&mut self, at: Time, tuning: &BoardTuning) {
        self.remaining = tuning.burst;
        let at = self.last.map_or(at, |last| at.max(last.after_us(tuning.burst_us)));
        self.due = self.due.min(at);
    }

    /// Returns true if an announcement is due, and then sets the time of the next one.
    fn take_due(&mut self, now: Time, tuning: &BoardTuning) -> bool {
        if self.due > now {
            return false;
        }
        self.remaining = self.remaining.saturating_sub(1);
        self.last = Some(now);
        self.due = now.after_us(if self.remaining > 0 { tuning.burst_us } else { tuning.announce_us });
        true
    }
}

impl Board {
    /// Announces the board if an announcement is due.
    pub(super) fn announce(&mut self, now: Time) {
        if !self.setup.discovery || !self.announce_timer.take_due(now, &self.setup.tuning) {
            return;
        }
        let announcement = Announcement { nic_id: self.setup.nic, serial: self.setup.serial };
        // The index is 0, as in Open-MX.
        let header = Header { dst: BROADCAST, src: self.setup.nic, peer_index: PeerIndex::new(0) };
        for link in self.links.query_links(&[None; super::LINKS_MAX], true).into_iter().flatten() {
            self.send(link, header, Packet::Raw(Raw { data: announcement.emit() }));
        }
    }

    /// Handles an announcement. The caller has checked its source address.
    pub(super) fn receive_announcement(
        &mut self,
        now: Time,
        link: LinkNumber,
        header: &Header,
        announcement: Announcement,
    ) -> Result<(), Dropped> {
        if announcement.nic_id != header.src {
            return Err(Dropped::AnnouncementMismatch);
        }
        let peer = match self.table.find_present(header.src) {
            Some(peer) => peer,
            None => self.discover(now, header)?,
        };
        let Some(entry) = self.table.get_mut(peer) else { return Err(Dropped::UnknownSource) };
        let tuning = self.setup.tuning;
        let starts_anew = entry.serial.is_some_and(|serial| serial != announcement.serial);
        let too_soon = |last: Time| now.since_us(last) < tuning.burst_us;
        if starts_anew && entry.restarted.is_some_and(too_soon) {
            // The serial is not recorded, so a later announcement with this serial is accepted.
            return Err(Dropped::RestartRateLimited);
        }
        entry.heard(now, link);
        if entry.serial.replace(announcement.serial) == Some(announcement.serial) {
            return Ok(());
        }
        if starts_anew {
            entry.restarts += 1;
            entry.restarted = Some(now);
            self.restart_query(now, peer);
            self.push_event(BoardEvent::Restarted(peer));
        }
        self.announce_timer.restart(now.after_us(tuning.burst_us), &tuning);
        Ok(())
    }

    /// Adds a peer that is not in the table, or was forgotten.
    fn discover(&mut self, now: Time, header: &Header) -> Result<PeerIndex, Dropped> {
        let returns = self.table.index_of(header.src).is_some();
        if !returns && self.table.announced() >= self.setup.tuning.announced_max {
            self.counters.add_rejected_peer();
            return Err(Dropped::TableFull);
        }
        if !self.rate_limiters.found.try_acquire(now) {
            return Err(Dropped::DiscoveryRateLimited);
        }
        match self.table.add(header.src, PeerOrigin::Announced) {
            Ok((peer, _)) => {
                self.peer_found(now, peer);
                Ok(peer)
            }
            Err(AddPeerError::Full { .. }) => {
                self.counters.add_rejected_peer();
                Err(Dropped::TableFull)
            }
            Err(AddPeerError::InvalidNic(_) | AddPeerError::TooManyNames(_)) => Err(Dropped::BadSource),
        }
    }
}

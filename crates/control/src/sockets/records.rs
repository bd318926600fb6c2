//! The records of users: the sockets that were refused last, and the bytes of the streams that have ended.
//!
//! A user has a record from its first program on. The records of users without a program are dropped, the oldest first, once there are too
//! many. Each change takes the same time, whatever was refused before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;

use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;

/// The number of refused sockets of one user that are kept.
const REFUSED_MAX: usize = 256;

/// The number of kept records of users without a program.
const IDLE_MAX: usize = 64;

/// The identity of a socket, as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketName {
    /// The inode, as in `/proc/PID/fd`.
    pub(super) inode: u64,
    /// The address of the socket.
    pub(super) local: SocketAddr,
    /// The address of the other end; none of a listening socket.
    pub(super) peer: Option<SocketAddr>,
}

/// A socket that got no stream, or that is not listed.
#[derive(Clone, Debug)]
pub(super) struct RefusedSocket {
    pub(super) name: SocketName,
    pub(super) reason: Reason,
    /// The process that has shown it, if the daemon can see it.
    pub(super) pid: Option<i32>,
    /// The name of the program.
    pub(super) program: String,
    /// The time of the refusal.
    pub(super) at: u64,
}

/// The bytes of streams that have ended, as their programs have counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EndedStreams {
    /// The streams with counters.
    pub(super) streams: u64,
    pub(super) shared_bytes: u64,
    pub(super) tcp_bytes: u64,
}

/// The record of a user.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The programs that are attached.
    programs: usize,
    idle_since: Option<u64>,
    /// The refused sockets, the oldest first.
    pub(super) refused: VecDeque<RefusedSocket>,
    pub(super) ended: EndedStreams,
    /// Those of them to a connector of another owner, which has them, too.
    pub(super) ended_to_others: EndedStreams,
}

/// The records of all users.
#[derive(Debug, Default)]
pub(super) struct Records {
    by_owner: BTreeMap<Owner, Record>,
    /// The users without a program, by the time at which the last one ended.
    idle: BTreeSet<(u64, Owner)>,
}

impl Records {
    /// The first user with a record and a number above another one, or of all.
    pub(super) fn next_after(&self, after: Option<Owner>) -> Option<Owner> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_owner.range((after, Bound::Unbounded)).next().map(|(owner, _)| *owner)
    }

    /// The record of a user.
    pub(super) fn get(&self, owner: Owner) -> Option<&Record> {
        self.by_owner.get(&owner)
    }

    /// Notes that a program of a user has attached.
    pub(super) fn attached(&mut self, owner: Owner) {
        let record = self.by_owner.entry(owner).or_default();
        record.programs += 1;
        if let Some(since) = record.idle_since.take() {
            self.idle.remove(&(since, owner));
        }
    }

    /// Notes that an attached program of a user has left.
    pub(super) fn left(&mut self, owner: Owner, now: u64) {
        let Some(record) = self.by_owner.get_mut(&owner) else { return };
        record.programs -= 1;
        if record.programs > 0 {
            return;
        }
        record.idle_since = Some(now);
        self.idle.insert((now, owner));
        if self.idle.len() > IDLE_MAX
            && let Some((_, oldest)) = self.idle.pop_first()
        {
            self.by_owner.remove(&oldest);
        }
    }

    /// Keeps a refused socket of a user with a program.
    pub(super) fn refuse(&mut self, owner: Owner, socket: RefusedSocket) {
        let Some(record) = self.by_owner.get_mut(&owner) else { return };
        if record.refused.len() >= REFUSED_MAX {
            record.refused.pop_front();
        }
        record.refused.push_back(socket);
    }

    /// Adds the bytes of a stream that has ended. `is_others`: the connector belongs to another owner.
    pub(super) fn add_ended(&mut self, owner: Owner, is_others: bool, shared_bytes: u64, tcp_bytes: u64) {
        let Some(Record { ended, ended_to_others, .. }) = self.by_owner.get_mut(&owner) else { return };
        let ended = if is_others { ended_to_others } else { ended };
        ended.streams += 1;
        ended.shared_bytes = ended.shared_bytes.saturating_add(shared_bytes);
        ended.tcp_bytes = ended.tcp_bytes.saturating_add(tcp_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(inode: u64) -> RefusedSocket {
        let name = SocketName { inode, local: ([10, 0, 0, 1], 80).into(), peer: None };
        RefusedSocket { name, reason: Reason::StreamDenied, pid: None, program: String::new(), at: 0 }
    }

    #[test]
    fn last_refusals_of_each_user_are_kept() {
        let (mut records, one, other) = (Records::default(), Owner(1), Owner(2));
        records.attached(one);
        records.attached(other);
        records.refuse(other, refused(7));
        (0..=REFUSED_MAX as u64).for_each(|inode| records.refuse(one, refused(inode)));
        let inodes = |owner| -> Vec<u64> {
            let record = records.get(owner).unwrap();
            record.refused.iter().map(|socket| socket.name.inode).collect()
        };
        assert_eq!(inodes(one), (1..=REFUSED_MAX as u64).collect::<Vec<_>>());
        assert_eq!(inodes(other), [7]);
    }

    #[test]
    fn records_of_users_without_a_program_are_bounded() {
        let mut records = Records::default();
        records.attached(Owner(0));
        for uid in 1..=2 * IDLE_MAX as u32 {
            records.attached(Owner(uid));
            records.refuse(Owner(uid), refused(1));
            records.left(Owner(uid), uid.into());
        }
        assert_eq!(records.by_owner.len(), IDLE_MAX + 1);
        assert_eq!(records.idle.len(), IDLE_MAX);
        // A user that comes back keeps the record.
        let last = Owner(2 * IDLE_MAX as u32);
        records.attached(last);
        records.add_ended(last, false, u64::MAX, 1);
        records.add_ended(last, false, 1, 1);
        records.add_ended(last, true, 5, 6);
        let record = records.get(last).unwrap();
        assert_eq!(record.ended, EndedStreams { streams: 2, shared_bytes: u64::MAX, tcp_bytes: 2 });
        assert_eq!(record.ended_to_others, EndedStreams { streams: 1, shared_bytes: 5, tcp_bytes: 6 });
        assert_eq!((record.refused.len(), records.idle.len()), (1, IDLE_MAX - 1));
    }
}

//! The decision which two shown sockets are the ends of one connection. It depends on nothing but the evidence.
//!
//! ```text
//!   both recorded             mirrored sequence numbers, anywhere                         exact
//!   same network namespace    mirrored addresses                                          exact
//!   different ones            never, unless `sockets.across` permits it; then:
//!                             mirrored addresses, one owner, the time of the SYN          no proof
//! ```
//!
//! The kernel's record of a connection holds the initial sequence numbers of both directions ([`isthmus_link::connection_record`]). Where
//! both sockets have one, nothing else counts: addresses may be translated on the way. A socket has no record if it is older than the
//! program that makes them, or was marked: it had connected before, or by `TCP_REPAIR`.
//!
//! A namespace has one established socket for each pair of addresses and ports, so mirrored addresses identify the other end. In another
//! namespace a program can have the same addresses. There the acceptor's SYN says when it was sent, by the clock of the connector's
//! timestamps, and the connector says when it connected. That tells connections apart that have the same addresses by accident. It proves
//! nothing against a program of the same owner: that one may state any time, and `TCP_REPAIR` sets the clock of a socket. Sockets of
//! different owners in two namespaces are therefore never paired.

use std::net::{IpAddr, SocketAddr};

use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_link::connection_record::ConnectionRecord;

/// The number of milliseconds by which the time of a SYN may be outside the time of its connect.
const SLACK_MS: u64 = 2;

/// The statements of the kernel and of the program about a shown socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    /// The address of the socket.
    pub(super) local: SocketAddr,
    /// The address of the other end.
    pub(super) peer: SocketAddr,
    /// The number of the socket in the kernel.
    pub(super) socket: u64,
    /// The number of its network namespace in the kernel. None if the addresses identify no connection there.
    pub(super) netns: Option<u64>,
    /// The kernel's record of the connection.
    pub(super) record: Result<ConnectionRecord, NoRecord>,
    /// The evidence that depends on the end.
    pub(super) end: EndEvidence,
}

/// The reason why a socket has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRecord {
    /// The kernel does not record connections.
    NoRecorder,
    /// The connection is older than the program that makes records, or was made without it.
    Unrecorded,
    /// The SYN had data, so the ends may have different numbers.
    FastOpen,
}

/// The evidence that depends on the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndEvidence {
    /// The program has connected the socket.
    Connector {
        /// The time before the connect, as the program says.
        since_ms: u64,
        /// The time after the connect, as the program says.
        until_ms: u64,
        /// The clock of the socket's timestamps.
        clock: Option<TimestampClock>,
    },
    /// The program has accepted the socket.
    Acceptor {
        /// The timestamp of the SYN.
        syn: Option<u32>,
    },
}

/// A value of the clock of a socket's timestamps, and the time at which the daemon has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimestampClock {
    /// The value in milliseconds.
    pub(super) value: u32,
    /// The time.
    pub(super) at_ms: u64,
}

/// A shown socket with mirrored addresses or numbers, which waits for its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// The evidence.
    pub(super) evidence: &'a Evidence,
    /// The owner of the program that has shown the socket.
    pub(super) owner: Owner,
}

/// The decision about a socket that was just shown. Numbers are those of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The socket waits. If no peer comes, the reason explains it better than that. It also holds for these candidates.
    Wait(Option<(Reason, Vec<usize>)>),
    /// The candidate is the other end.
    Pair(usize),
    /// Neither the socket nor these candidates can be paired.
    Refuse(Reason, Vec<usize>),
}

impl Evidence {
    /// True if the program has connected the socket.
    pub(super) fn is_connector(&self) -> bool {
        matches!(self.end, EndEvidence::Connector { .. })
    }

    /// True if one of the two has connected, and the other one was accepted.
    fn faces(&self, other: &Self) -> bool {
        self.is_connector() != other.is_connector()
    }

    /// The addresses of this end and of the other one.
    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.peer)
    }

    /// The addresses that the other end has.
    pub(super) fn mirrored(&self) -> (SocketAddr, SocketAddr) {
        (self.peer, self.local)
    }

    /// Checks whether both are recorded as the ends of one connection. None if one of them has no record.
    fn is_recorded_with(&self, other: &Self) -> Option<bool> {
        let (Ok(own), Ok(other)) = (&self.record, &other.record) else { return None };
        Some(own.is_other_end_of(other))
    }

    /// The reason for which a socket without a record may find no peer in another network namespace.
    fn why_unrecorded(&self) -> Option<Reason> {
        match self.record {
            Ok(_) | Err(NoRecord::NoRecorder) => None,
            Err(NoRecord::Unrecorded) => Some(Reason::StreamUnrecorded),
            Err(NoRecord::FastOpen) => Some(Reason::StreamFastOpen),
        }
    }

    /// Checks whether the acceptor's SYN was sent while the connector connected. None if the evidence is incomplete.
    fn is_syn_in_time(&self, other: &Self) -> Option<bool> {
        let (connector, acceptor) = if self.is_connector() { (self, other) } else { (other, self) };
        let (&EndEvidence::Connector { since_ms, until_ms, clock }, &EndEvidence::Acceptor { syn }) =
            (&connector.end, &acceptor.end)
        else {
            return None;
        };
        let (clock, syn) = (clock?, syn?);
        // The difference is signed: the clock rounds, so the SYN may seem younger than the time at which the clock was read.
        let elapsed = clock.value.wrapping_sub(syn).cast_signed();
        let sent_ms = clock.at_ms.checked_add_signed(-i64::from(elapsed));
        // The socket was connected when the clock was read, so its SYN is not younger, whatever the program says.
        let until_ms = until_ms.min(clock.at_ms);
        let window = since_ms.saturating_sub(SLACK_MS)..=until_ms.saturating_add(SLACK_MS);
        Some(sent_ms.is_some_and(|sent_ms| window.contains(&sent_ms)))
    }
}

/// Decides about a socket, given all waiting ones with mirrored addresses or numbers. `across` permits pairs in two network namespaces
/// without records.
pub(super) fn decide(shown: Candidate<'_>, candidates: &[Candidate<'_>], across: bool) -> Decision {
    let evidence = shown.evidence;
    let facing = |is_recorded: Option<bool>| {
        let others = candidates.iter().enumerate();
        others.filter(move |(_, other)| {
            evidence.faces(other.evidence) && evidence.is_recorded_with(other.evidence) == is_recorded
        })
    };
    let is_near = |other: &Candidate<'_>| evidence.netns.is_some() && other.evidence.netns == evidence.netns;
    // A socket that was closed without notice may still wait here; the time of the SYN tells it from a later one with its addresses.
    let is_by_address = |other: &Candidate<'_>| {
        other.evidence.addresses() == evidence.mirrored() && evidence.is_syn_in_time(other.evidence) != Some(false)
    };
    let mut exact: Vec<usize> = facing(Some(true)).map(|(number, _)| number).collect();
    if exact.is_empty() {
        let near = facing(None).filter(|(_, other)| is_near(other) && is_by_address(other));
        exact.extend(near.map(|(number, _)| number));
    }
    match exact[..] {
        [] => decide_without_proof(shown, candidates, across),
        [one] => Decision::Pair(one),
        _ => Decision::Refuse(Reason::StreamAmbiguous, exact),
    }
}

/// Decides about a socket of which no candidate is the other end for certain.
fn decide_without_proof(shown: Candidate<'_>, candidates: &[Candidate<'_>], across: bool) -> Decision {
    let evidence = shown.evidence;
    let unrecorded = evidence.why_unrecorded();
    if is_loopback(evidence.local.ip()) || is_loopback(evidence.peer.ip()) {
        return Decision::Wait(None); // Such a connection does not leave its namespace.
    }
    let far = || {
        let others = candidates.iter().enumerate();
        others.filter(|(_, other)| {
            let other = other.evidence;
            let is_far = other.netns != evidence.netns && other.addresses() == evidence.mirrored();
            is_far && evidence.faces(other) && evidence.is_recorded_with(other).is_none()
        })
    };
    let in_time = |other: &Candidate<'_>| evidence.is_syn_in_time(other.evidence);
    let of_owner = || far().filter(|(_, other)| other.owner == shown.owner);
    let wait = |reason, which: Vec<usize>| {
        let waits = (!which.is_empty()).then_some((reason, which));
        Decision::Wait(waits.or(unrecorded.map(|reason| (reason, Vec::new()))))
    };
    if !across {
        let which = of_owner().filter(|(_, other)| in_time(other) != Some(false)).map(|(number, _)| number).collect();
        return wait(unrecorded.unwrap_or(Reason::StreamAcrossNamespaces), which);
    }
    let numbers = |in_time_is: Option<bool>| -> Vec<usize> {
        of_owner().filter(|(_, other)| in_time(other) == in_time_is).map(|(number, _)| number).collect()
    };
    let found = numbers(Some(true));
    match found[..] {
        [one] => return Decision::Pair(one),
        [] => {}
        _ => return Decision::Refuse(Reason::StreamAmbiguous, found),
    }
    let unidentified = numbers(None);
    if !unidentified.is_empty() {
        return Decision::Wait(Some((Reason::StreamUnidentified, unidentified)));
    }
    let others = far().filter(|(_, other)| other.owner != shown.owner && in_time(other) != Some(false));
    wait(Reason::StreamOwnerDiffers, others.map(|(number, _)| number).collect())
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: Owner = Owner(1000);
    const OTHER_UID: Owner = Owner(1001);
    const AT_MS: u64 = 1_000_000;

    fn address(last: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, last], port).into()
    }

    /// A connector that has connected at `sent_ms`, and was shown at `AT_MS`.
    fn connector(netns: u64, sent_ms: u64) -> Evidence {
        let clock = Some(TimestampClock { value: 500_000, at_ms: AT_MS });
        let end = EndEvidence::Connector { since_ms: sent_ms - 1, until_ms: sent_ms + 1, clock };
        let (local, peer) = (address(1, 40_000), address(2, 80));
        Evidence { local, peer, socket: 10 * netns, netns: Some(netns), record: Err(NoRecord::NoRecorder), end }
    }

    /// An acceptor with a SYN that was sent at `sent_ms` by the clock of [`connector`].
    fn acceptor(netns: u64, sent_ms: u64) -> Evidence {
        let syn = Some(500_000 - (AT_MS - sent_ms) as u32);
        let end = EndEvidence::Acceptor { syn };
        let (local, peer) = (address(2, 80), address(1, 40_000));
        Evidence { local, peer, socket: 10 * netns + 1, netns: Some(netns), record: Err(NoRecord::NoRecorder), end }
    }

    fn without_proof(mut evidence: Evidence) -> Evidence {
        match &mut evidence.end {
            EndEvidence::Connector { clock, .. } => *clock = None,
            EndEvidence::Acceptor { syn } => *syn = None,
        }
        evidence
    }

    fn decide_for(shown: (&Evidence, Owner), candidates: &[(&Evidence, Owner)]) -> Decision {
        let candidate = |&(evidence, owner): &(_, _)| Candidate { evidence, owner };
        decide(candidate(&shown), &candidates.iter().map(candidate).collect::<Vec<_>>(), true)
    }

    /// As [`decide_for`], without pairs in two namespaces.
    fn decide_within(shown: (&Evidence, Owner), candidates: &[(&Evidence, Owner)]) -> Decision {
        let candidate = |&(evidence, owner): &(_, _)| Candidate { evidence, owner };
        decide(candidate(&shown), &candidates.iter().map(candidate).collect::<Vec<_>>(), false)
    }

    #[test]
    fn mirrored_addresses_in_one_namespace_are_a_pair() {
        let (a, b) = (connector(1, 900_000), acceptor(1, 900_000));
        assert_eq!(decide_for((&b, UID), &[(&a, UID)]), Decision::Pair(0));
        assert_eq!(decide_for((&a, UID), &[(&b, UID)]), Decision::Pair(0));
        assert_eq!(decide_for((&without_proof(b), UID), &[(&a, UID)]), Decision::Pair(0));
    }

    #[test]
    fn two_ends_of_one_kind_are_no_pair() {
        let a = connector(1, 900_000);
        assert_eq!(decide_for((&a, UID), &[(&connector(1, 900_000), UID)]), Decision::Wait(None));
    }

    #[test]
    fn namespaces_are_crossed_with_the_time_of_the_syn_only() {
        let (a, b) = (connector(1, 900_000), acceptor(2, 900_000));
        assert_eq!(decide_for((&b, UID), &[(&a, UID)]), Decision::Pair(0));
        assert_eq!(decide_for((&acceptor(2, 900_010), UID), &[(&a, UID)]), Decision::Wait(None));
        assert_eq!(decide_for((&acceptor(2, 899_990), UID), &[(&a, UID)]), Decision::Wait(None));
        for incomplete in [without_proof(a.clone()), a.clone()] {
            let b = if incomplete == a { without_proof(b.clone()) } else { b.clone() };
            let waits = Decision::Wait(Some((Reason::StreamUnidentified, vec![0])));
            assert_eq!(decide_for((&b, UID), &[(&incomplete, UID)]), waits);
        }
    }

    #[test]
    fn time_of_the_syn_counts_modulo_the_width_of_timestamps() {
        let mut a = connector(1, 900_000);
        let EndEvidence::Connector { clock, .. } = &mut a.end else { unreachable!() };
        clock.as_mut().unwrap().value = 50_000;
        let mut b = acceptor(2, 900_000);
        b.end = EndEvidence::Acceptor { syn: Some(50_000_u32.wrapping_sub(100_000)) };
        assert_eq!(decide_for((&b, UID), &[(&a, UID)]), Decision::Pair(0));
    }

    #[test]
    fn repeating_the_addresses_in_an_own_namespace_does_not_reach_another_owner() {
        // The attacker has the same clock, because the kernel has one key, and states any time it likes.
        let mut attacker = connector(3, 900_000);
        let EndEvidence::Connector { since_ms, until_ms, .. } = &mut attacker.end else { unreachable!() };
        (*since_ms, *until_ms) = (0, u64::MAX);
        let (victim, genuine) = (acceptor(2, 900_000), connector(1, 900_000));
        let waits = Decision::Wait(Some((Reason::StreamOwnerDiffers, vec![0])));
        assert_eq!(decide_for((&victim, UID), &[(&attacker, OTHER_UID)]), waits);
        assert_eq!(decide_for((&victim, UID), &[(&attacker, OTHER_UID), (&genuine, UID)]), Decision::Pair(1));
        // Of the same owner it is ambiguous.
        let both = Decision::Refuse(Reason::StreamAmbiguous, vec![0, 1]);
        assert_eq!(decide_for((&victim, UID), &[(&attacker, UID), (&genuine, UID)]), both);
        // In the namespace of the victim the genuine one is exact.
        let near = connector(2, 900_000);
        assert_eq!(decide_for((&victim, UID), &[(&attacker, UID), (&near, UID)]), Decision::Pair(1));
    }

    #[test]
    fn namespaces_are_crossed_only_if_that_is_permitted() {
        // The attacker states any time, and its clock says what it has set by `TCP_REPAIR`.
        let mut attacker = connector(3, 900_000);
        let EndEvidence::Connector { since_ms, until_ms, .. } = &mut attacker.end else { unreachable!() };
        (*since_ms, *until_ms) = (0, u64::MAX);
        let (victim, genuine) = (acceptor(2, 900_000), connector(1, 900_000));
        let waits = |which| Decision::Wait(Some((Reason::StreamAcrossNamespaces, which)));
        assert_eq!(decide_within((&victim, UID), &[(&attacker, UID)]), waits(vec![0]));
        assert_eq!(decide_within((&victim, UID), &[(&attacker, UID), (&genuine, UID)]), waits(vec![0, 1]));
        assert_eq!(decide_within((&without_proof(victim.clone()), UID), &[(&genuine, UID)]), waits(vec![0]));
        // Nothing is said about sockets of other owners, and of other connections.
        assert_eq!(decide_within((&victim, UID), &[(&attacker, OTHER_UID)]), Decision::Wait(None));
        assert_eq!(decide_within((&acceptor(2, 899_990), UID), &[(&genuine, UID)]), Decision::Wait(None));
        // The own namespace is exact.
        let near = connector(2, 900_000);
        assert_eq!(decide_within((&victim, UID), &[(&attacker, UID), (&near, UID)]), Decision::Pair(1));
    }

    #[test]
    fn socket_of_another_owner_in_the_same_namespace_is_the_pair() {
        let (a, b) = (connector(1, 900_000), acceptor(1, 900_000));
        assert_eq!(decide_for((&b, UID), &[(&a, OTHER_UID)]), Decision::Pair(0));
    }

    #[test]
    fn socket_that_was_shown_before_the_syn_is_not_its_connector() {
        // The connection was closed without notice, and another program of the namespace has its addresses now.
        let mut stale = connector(1, 900_000);
        let EndEvidence::Connector { since_ms, until_ms, .. } = &mut stale.end else { unreachable!() };
        (*since_ms, *until_ms) = (0, u64::MAX);
        let later = acceptor(1, AT_MS - 1);
        assert_eq!(decide_for((&later, UID), &[(&stale, UID)]), Decision::Pair(0), "before the show it may be");
        let mut later = later;
        later.end = EndEvidence::Acceptor { syn: Some(500_000 + 10) };
        assert_eq!(decide_for((&later, UID), &[(&stale, UID)]), Decision::Wait(None));
    }

    #[test]
    fn loopback_connections_do_not_cross_namespaces() {
        let (mut a, mut b) = (connector(1, 900_000), acceptor(2, 900_000));
        let (client, server): (SocketAddr, SocketAddr) = (([127, 0, 0, 1], 40_000).into(), ([127, 0, 0, 1], 80).into());
        (a.local, a.peer, b.local, b.peer) = (client, server, server, client);
        assert_eq!(decide_for((&b, UID), &[(&a, UID)]), Decision::Wait(None));
    }

    fn recorded(mut evidence: Evidence, sent: u32, received: u32, at_ns: u64) -> Evidence {
        evidence.record = Ok(ConnectionRecord { sent, received, at_ns });
        evidence
    }

    #[test]
    fn mirrored_numbers_are_a_pair_with_any_addresses() {
        let a = recorded(connector(1, 900_000), 7, 9, 1);
        let mut b = recorded(acceptor(2, 900_000), 9, 7, 2);
        (b.local, b.peer) = (address(3, 8080), address(4, 9));
        assert_eq!(decide_within((&b, UID), &[(&a, UID)]), Decision::Pair(0));
        assert_eq!(decide_within((&a, UID), &[(&b, UID)]), Decision::Pair(0));
        b.netns = None;
        assert_eq!(decide_within((&a, UID), &[(&b, UID)]), Decision::Pair(0));
        assert_eq!(decide_within((&b, UID), &[(&a, OTHER_UID)]), Decision::Pair(0), "policy decides about owners");
        for other in [recorded(b.clone(), 9, 8, 2), recorded(b.clone(), 7, 9, 2), recorded(b.clone(), 9, 7, 1 << 30)] {
            assert_eq!(decide_within((&other, UID), &[(&a, UID)]), Decision::Wait(None), "{other:?}");
        }
        let same_kind = recorded(connector(2, 900_000), 9, 7, 2);
        assert_eq!(decide_within((&same_kind, UID), &[(&a, UID)]), Decision::Wait(None));
    }

    #[test]
    fn other_numbers_are_no_pair_with_the_same_addresses() {
        let (a, stale) = (recorded(connector(1, 900_000), 7, 9, 1), recorded(connector(1, 900_000), 6, 9, 1));
        let b = recorded(acceptor(1, 900_000), 9, 7, 2);
        assert_eq!(decide_for((&b, UID), &[(&stale, UID)]), Decision::Wait(None));
        assert_eq!(decide_for((&b, UID), &[(&stale, UID), (&a, UID)]), Decision::Pair(1));
        let elsewhere = recorded(connector(3, 900_000), 6, 9, 1);
        assert_eq!(decide_for((&b, UID), &[(&elsewhere, UID)]), Decision::Wait(None), "`across` does not matter");
        // One without a record may be the other end in the namespace, but a recorded one is.
        let unrecorded = connector(1, 900_000);
        assert_eq!(decide_for((&b, UID), &[(&unrecorded, UID)]), Decision::Pair(0));
        assert_eq!(decide_for((&b, UID), &[(&unrecorded, UID), (&a, UID)]), Decision::Pair(1));
    }

    #[test]
    fn socket_without_a_record_is_paired_in_its_namespace_and_has_a_reason() {
        let far = recorded(connector(2, 900_000), 7, 9, 1);
        let causes = [(NoRecord::Unrecorded, Reason::StreamUnrecorded), (NoRecord::FastOpen, Reason::StreamFastOpen)];
        for (cause, reason) in causes {
            let b = Evidence { record: Err(cause), ..acceptor(1, 900_000) };
            let near = Evidence { record: Err(cause), ..connector(1, 900_000) };
            assert_eq!(decide_within((&b, UID), &[(&near, UID)]), Decision::Pair(0));
            assert_eq!(decide_within((&b, UID), &[(&far, UID)]), Decision::Wait(Some((reason, vec![0]))));
            assert_eq!(decide_within((&b, UID), &[]), Decision::Wait(Some((reason, vec![]))));
        }
        // A socket that is bound to an interface has no namespace here: its addresses identify nothing.
        let (a, b) = (connector(1, 900_000), Evidence { netns: None, ..acceptor(1, 900_000) });
        assert_ne!(decide_within((&a, UID), &[(&b, UID)]), Decision::Pair(0));
    }
}

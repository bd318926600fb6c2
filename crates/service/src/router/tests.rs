//! The accounts hold, whatever domains send, take, give back, and however they end.

use super::*;
use crate::domain_state::Next;
use isthmus_layout::EndpointIndex;
use isthmus_layout::limits::DAEMON_PATH_FRAGMENT_BYTES_MAX;
use isthmus_layout::record::Fragment;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// A record with `bytes` message bytes. `room` says whether the receiver's ring has room for it.
    Send {
        from: usize,
        to: usize,
        bytes: u32,
        room: bool,
    },
    /// The ring of a domain has room for `records` records.
    Read {
        who: usize,
        records: usize,
    },
    /// A part of what was delivered, in sixteenths, and a little more if that is to be a violation.
    GiveBack {
        who: usize,
        to: usize,
        part: u32,
        beyond: u32,
    },
    Leave {
        who: usize,
    },
    Forbid {
        from: usize,
    },
}

const DOMAINS: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..DOMAINS;
    prop_oneof![
        8 => (who(), who(), 0..9000_u32, any::<bool>()).prop_map(|(from, to, bytes, room)| Op::Send { from, to, bytes, room }),
        4 => (who(), 0..20_usize).prop_map(|(who, records)| Op::Read { who, records }),
        4 => (who(), who(), 1..17_u32, prop_oneof![9 => Just(0), 1 => 1..200_u32])
            .prop_map(|(who, to, part, beyond)| Op::GiveBack { who, to, part, beyond }),
        1 => who().prop_map(|who| Op::Leave { who }),
        1 => who().prop_map(|from| Op::Forbid { from }),
    ]
}

fn route(peer: DomainId) -> Route {
    let end = EndpointIndex::new(3).unwrap();
    Route { from: end, to: end, epoch: 0, peer: Some(peer) }
}

/// The router with what stands around it: rings of unlimited size, and what came out of them.
struct Model {
    router: Router,
    slots: [Option<Slot>; DOMAINS],
    ids: [DomainId; DOMAINS],
    next: u32,
}

impl Model {
    fn new() -> Self {
        let ids = [1, 2, 3, 4].map(|number| DomainId::new(number).unwrap());
        let mut router = Router::new(SendPolicy::allow_all());
        let slots = ids.map(|id| Some(router.add(id, Owner(id.number() % 2))));
        Self { router, slots, ids, next: 5 }
    }

    /// A domain in the place of one that is gone.
    fn replace(&mut self, who: usize) {
        self.ids[who] = DomainId::new(self.next).unwrap();
        self.next += 1;
        self.slots[who] = Some(self.router.add(self.ids[who], Owner(0)));
    }

    fn remove(&mut self, who: usize) {
        let slot = self.slots[who].take().unwrap();
        self.router.remove(slot, Reason::PeerConnectionLost);
        self.replace(who);
    }

    fn slot(&self, who: usize) -> Slot {
        self.slots[who].unwrap()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Send { from, to, bytes, room } => self.send(from, to, bytes, room),
            Op::Read { who, records } => {
                for _ in 0..records {
                    let slot = self.slot(who);
                    if self.router.next(slot).is_none() {
                        break;
                    }
                    self.router.sent(slot);
                }
            }
            Op::GiveBack { who, to, part, beyond } => self.give_back(who, to, part, beyond),
            Op::Leave { who } => self.remove(who),
            Op::Forbid { from } => {
                let from = self.ids[from];
                let reason = Reason::TalkForbidden;
                self.router.set_send_policy(SendPolicy::new(
                    move |domain, _| if domain == from { Err(reason) } else { Ok(()) },
                ));
            }
        }
        self.check();
    }

    fn send(&mut self, from: usize, to: usize, bytes: u32, room: bool) {
        let fragment = Fragment { offset: 0, len: bytes };
        let record = Record::NextFragment { serial: Serial(1), fragment };
        match self.router.route(self.slot(from), route(self.ids[to]), &record) {
            Verdict::Forward { to: slot, route } => {
                assert_eq!((slot, route.peer), (self.slot(to), Some(self.ids[from])));
                if room && self.router.is_clear(slot) {
                    self.router.delivered(slot, self.ids[from], bytes);
                } else if self.router.enqueue(slot, route, &record, &vec![0; bytes as usize]).is_some() {
                    panic!("so few domains cannot reach the limit");
                }
            }
            Verdict::Violation(violation) => {
                let outstanding = self.outstanding(from, to);
                match violation {
                    Violation::FragmentEmpty => assert_eq!(bytes, 0),
                    Violation::FragmentTooLong(_) => assert!(bytes > DAEMON_PATH_FRAGMENT_BYTES_MAX),
                    Violation::CreditExceeded { .. } => assert!(outstanding + 128 + bytes > DAEMON_PATH_CREDIT_BYTES),
                    other => panic!("{other}"),
                }
            }
            Verdict::Refused(reason) => assert_eq!(reason, Reason::TalkForbidden),
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, who: usize, to: usize, part: u32, beyond: u32) {
        let delivered = self.flow(to, who).0;
        let bytes = delivered * part / 16 + beyond;
        let (before, excess_credit) = (self.outstanding(to, who), self.state_at(who).excess_credit);
        let allowed = u64::from(delivered) + excess_credit;
        match self.router.route(self.slot(who), route(self.ids[to]), &Record::Credit { bytes }) {
            Verdict::Credited => {
                assert!(bytes > 0 && u64::from(bytes) <= allowed);
                assert_eq!(self.outstanding(to, who), before - bytes.min(delivered));
            }
            Verdict::Violation(Violation::CreditEmpty) => assert_eq!(bytes, 0),
            Verdict::Violation(Violation::CreditBeyond { .. }) => assert!(u64::from(bytes) > allowed),
            other => panic!("{other:?}"),
        }
    }

    fn state_at(&self, who: usize) -> &DomainState {
        &self.router.states[self.slot(who).0]
    }

    fn outstanding(&self, from: usize, to: usize) -> u32 {
        self.state_at(from).outgoing.get(&self.ids[to]).map_or(0, |outgoing| outgoing.outstanding)
    }

    /// Cost of what was delivered, and what is held.
    fn flow(&self, from: usize, to: usize) -> (u32, u32) {
        self.state_at(to).flows.get(&self.ids[from]).map_or((0, 0), |flow| (flow.delivered, flow.held_cost()))
    }

    fn check(&self) {
        for from in 0..DOMAINS {
            for to in 0..DOMAINS {
                let (delivered, held) = self.flow(from, to);
                let outstanding = self.outstanding(from, to);
                assert_eq!(delivered + held, outstanding);
                assert!(outstanding <= DAEMON_PATH_CREDIT_BYTES);
            }
        }
        let held = |state: &DomainState| state.flows.values().map(|flow| u64::from(flow.held_cost())).sum::<u64>();
        let states = || self.router.states.values();
        assert!(states().all(|state| state.held_cost == held(state)));
        assert_eq!(self.router.held_cost, states().map(held).sum::<u64>());
        for who in 0..DOMAINS {
            let (state, slot) = (self.state_at(who), self.slot(who));
            assert_eq!(state.is_waiting, self.router.waiting.contains(&slot));
            assert!(state.is_waiting || state.is_clear(), "a state that is not clear is not in the list");
            assert_eq!(state.is_clear(), self.router.next(slot).is_none());
        }
    }
}

proptest! {
    #[test]
    fn accounts_hold_whatever_happens(ops in prop::collection::vec(op(), 1..300)) {
        let mut model = Model::new();
        for op in ops {
            model.apply(op);
        }
    }
}

#[test]
fn owner_with_the_largest_backlog_is_cut_off_at_the_worker_limit() {
    let mut model = Model::new();
    // One domain of owner 1 has the most; but the domains of owner 0 have more together.
    let mut hold = |from: usize, to: usize, records: u32| {
        let slot = model.slot(to);
        for _ in 0..records {
            let route = route(model.ids[from]);
            model.router.enqueue(slot, route, &Record::Switch, &[]);
        }
    };
    hold(1, 0, 100);
    hold(0, 1, 90);
    hold(0, 3, 80);
    let (slot, violation) = model.router.largest_backlog().unwrap();
    assert_eq!((slot, violation), (model.slot(1), Violation::NotReading { held: 90 * 128 }));
}

#[test]
fn bounces_come_before_the_credit_of_what_bounced() {
    let mut model = Model::new();
    let (slot, remote_peer) = (model.slot(0), DomainId::new(77).unwrap());
    for len in [5, 7] {
        let record = Record::Eager { tag: 0, len, words: &[] };
        assert_eq!(model.router.route(slot, route(remote_peer), &record), Verdict::Unknown { peer: remote_peer });
        let verdict = model.router.refuse_unknown(slot, route(remote_peer), &record);
        assert_eq!(verdict, Verdict::Refused(Reason::NoSuchDomain));
    }
    let mut kinds = Vec::new();
    while let Some(Next::DaemonRecord(answer)) = model.router.next(slot) {
        kinds.push(answer.record);
        model.router.sent(slot);
    }
    let bounce = Record::Bounce { serial: Serial(0), reason: Reason::NoSuchDomain.code() };
    assert_eq!(kinds, [bounce, bounce, Record::Credit { bytes: 2 * 128 + 12 }]);
}

/// Deferred credit for messages to another host goes with the next record, at the limit, or when it completes a send.
#[test]
fn deferred_credit_goes_with_the_next_record() {
    let (domain, remote_peer) = (DomainId::new(1).unwrap(), DomainId::remote(0).unwrap());
    let mut router = Router::new(SendPolicy::allow_all());
    let slot = router.add(domain, Owner(0));
    router.add_remote_peer(remote_peer, PollerKind::Mx);
    let end = EndpointIndex::new(0).unwrap();
    let route = Route { from: end, to: end, epoch: 0, peer: Some(remote_peer) };
    let send = Record::Eager { tag: 1, len: 8, words: &[1, 2] };
    // It has that much under way.
    for _ in 0..300 {
        assert_eq!(router.route(slot, route, &send), Verdict::Remote { poller: PollerKind::Mx, remote_peer });
    }
    let given = |router: &mut Router| match router.next(slot) {
        Some(Next::DaemonRecord(answer)) => {
            let Record::Credit { bytes } = answer.record else { panic!("{answer:?}") };
            router.sent(slot);
            Some(bytes)
        }
        other => {
            assert!(other.is_none(), "{other:?}");
            None
        }
    };
    router.defer_credit(slot, route, 136);
    assert_eq!(given(&mut router), None);
    router.delivered(slot, remote_peer, 8);
    assert_eq!(given(&mut router), Some(136), "with a record");
    router.defer_credit(slot, route, 136);
    router.defer_credit(slot, route, DAEMON_PATH_CREDIT_BYTES / 4);
    assert_eq!(given(&mut router), Some(136 + DAEMON_PATH_CREDIT_BYTES / 4), "when it is much");
    router.defer_credit(slot, route, 136);
    router.credit_sender_now(slot, route, 200);
    assert_eq!((given(&mut router), given(&mut router)), (Some(336), None), "with what ends a send");
}

//! The table of the standard for changes of a queue pair's state (InfiniBand, volume 1, chapter 11, "Modify Queue Pair"): each pair of
//! states, with each set of attributes that leaves one required attribute out or adds one.

use crate::network::{Network, address};
use crate::setup::{Options, Q_KEY, Qp, create, modify, ready_to_receive, ready_to_send, source, state};
use AttributeMask as M;
use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
use isthmus_verbs::{
    Access, AddressVector, AttributeMask, Attributes, Operation, QpNumber, QpState, QpType, Refused, SendFlags,
};

const STATES: [QpState; 7] = [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError, Error];

/// A row of the table: the states, and the attributes required and optional for RC, UC and UD. Alternate paths and migration are
/// optional in the standard; the adapter has neither.
type Row = (QpState, QpState, [(u32, u32); 3]);

const CURRENT: u32 = 0x2;
const ACCESS: u32 = 0x8;
const P_KEY: u32 = 0x10;
const PORT: u32 = 0x20;
const Q_KEY_BIT: u32 = 0x40;
const ADDRESS: u32 = 0x80;
const RETRY: u32 = 0x2e00; // timeout, both retries, reads
const RNR_TIMER: u32 = 0x8000;
const SEND_PSN: u32 = 0x1_0000;
const READS_SERVED: u32 = 0x2_0000;
const CONNECT: u32 = 0x10_1180; // address, path MTU, destination, PSN

#[rustfmt::skip]
const TABLE: [Row; 8] = [
    (Reset, Init, [(P_KEY | PORT | ACCESS, 0), (P_KEY | PORT | ACCESS, 0), (P_KEY | PORT | Q_KEY_BIT, 0)]),
    (Init, Init, [(0, P_KEY | PORT | ACCESS), (0, P_KEY | PORT | ACCESS), (0, P_KEY | PORT | Q_KEY_BIT)]),
    (Init, ReadyToReceive, [(CONNECT | READS_SERVED | RNR_TIMER, ACCESS | P_KEY), (CONNECT, ACCESS | P_KEY), (0, P_KEY | Q_KEY_BIT)]),
    (ReadyToReceive, ReadyToSend, [(RETRY | SEND_PSN, CURRENT | ACCESS | RNR_TIMER), (SEND_PSN, CURRENT | ACCESS), (SEND_PSN, CURRENT | Q_KEY_BIT)]),
    (ReadyToSend, ReadyToSend, [(0, CURRENT | ACCESS | RNR_TIMER), (0, CURRENT | ACCESS), (0, CURRENT | Q_KEY_BIT)]),
    (ReadyToSend, SendQueueDrained, [(0, 0x4), (0, 0x4), (0, 0x4)]),
    (SendQueueDrained, ReadyToSend, [(0, CURRENT | ACCESS | RNR_TIMER), (0, CURRENT | ACCESS), (0, CURRENT | Q_KEY_BIT)]),
    (SendQueueDrained, SendQueueDrained, [
        (0, PORT | ADDRESS | RETRY | READS_SERVED | ACCESS | P_KEY | RNR_TIMER),
        (0, ADDRESS | ACCESS | P_KEY),
        (0, P_KEY | Q_KEY_BIT),
    ]),
];

/// The row of a change. None if there is no such change.
fn row(kind: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    let column = match kind {
        QpType::Rc => 0,
        QpType::Uc => 1,
        QpType::Ud => 2,
    };
    match (from, to) {
        (_, Reset | Error) => Some((0, 0)),
        (SendQueueError, ReadyToSend) => match kind {
            QpType::Rc => None,
            QpType::Uc => Some((0, CURRENT | ACCESS)),
            QpType::Ud => Some((0, CURRENT | Q_KEY_BIT)),
        },
        _ => TABLE.iter().find(|(of, next, _)| (*of, *next) == (from, to)).map(|(_, _, columns)| columns[column]),
    }
}

/// A queue pair in a state.
fn in_state(kind: QpType, wanted: QpState) -> (Network, Qp) {
    let options = Options::default();
    let mut network = Network::new(1, 1);
    let qp = create(&mut network, 0, kind, &options, None);
    let to = |network: &mut Network, state| {
        let change = Attributes { state, q_key: Q_KEY, access: Access::all(), ..Attributes::default() };
        let attributes = if kind == QpType::Ud { M::Q_KEY } else { M::ACCESS };
        let begin = if state == Init { M::P_KEY_INDEX | M::PORT | attributes } else { M::empty() };
        modify(network, qp, &change, M::STATE | begin, None).unwrap();
    };
    match wanted {
        Reset => {}
        Init | Error => to(&mut network, wanted),
        _ => {
            ready_to_receive(&mut network, qp, qp, &options);
            if wanted != ReadyToReceive {
                ready_to_send(&mut network, qp, qp, &options);
            }
            if wanted == SendQueueDrained {
                to(&mut network, SendQueueDrained);
            }
            if wanted == SendQueueError {
                fail(&mut network, qp);
            }
        }
    }
    assert_eq!(state(&network, qp), wanted);
    (network, qp)
}

fn fail(network: &mut Network, qp: Qp) {
    let sge = isthmus_verbs::Sge { lkey: 0, ..source(network, qp, b"data") };
    let datagram = (qp.kind == QpType::Ud).then_some((AddressVector::default(), qp.number, Q_KEY));
    network.call(0, |engine, _| engine.add_route(AddressVector::default().gid, qp.number, Some(address(0))));
    let operation = Operation::Send { immediate: None };
    let request = crate::setup::SendWr { wr_id: 1, operation, flags: SendFlags::SIGNALED, sges: vec![sge], datagram };
    crate::setup::post(network, qp, &request).unwrap();
    network.settle();
}

fn attempt(kind: QpType, from: QpState, to: QpState, mask: u32) -> bool {
    let (mut network, qp) = in_state(kind, from);
    let attributes = Attributes { state: to, current_state: from, destination: QpNumber(256), ..Attributes::default() };
    let mask = M::STATE | M::from_bits_retain(mask);
    match modify(&mut network, qp, &attributes, mask, Some(address(0))) {
        Ok(()) => {
            assert_eq!(state(&network, qp), to);
            true
        }
        Err(refused) => {
            assert_eq!((refused, state(&network, qp)), (Refused::Invalid, from));
            false
        }
    }
}

#[test]
fn changes_of_state_need_what_the_standard_requires() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            if (kind, from) == (QpType::Rc, SendQueueError) {
                continue; // A reliable connection goes to Error at once.
            }
            for to in STATES {
                let said = format!("{kind:?} {from:?} {to:?}");
                let Some((required, optional)) = row(kind, from, to) else {
                    assert!(!attempt(kind, from, to, 0) && !attempt(kind, from, to, CURRENT), "{said}");
                    continue;
                };
                assert!(attempt(kind, from, to, required), "{said}");
                assert!(attempt(kind, from, to, required | optional), "{said}");
                for bit in (1..=20).map(|bit| 1 << bit) {
                    if required & bit != 0 {
                        assert!(!attempt(kind, from, to, required & !bit), "{said} without {bit:#x}");
                    } else {
                        assert_eq!(
                            attempt(kind, from, to, required | bit),
                            optional & bit != 0,
                            "{said} with {bit:#x}"
                        );
                    }
                }
            }
        }
    }
}

/// Gives one attribute a value.
type Change = fn(&mut Attributes);

#[test]
fn values_that_no_adapter_has_are_refused() {
    let wrong: [(M, Change); 9] = [
        (M::PORT, |attributes| attributes.port = 2),
        (M::P_KEY_INDEX, |attributes| attributes.p_key_index = 1),
        (M::TIMEOUT, |attributes| attributes.timeout = 32),
        (M::RETRY_COUNT, |attributes| attributes.retry_count = 8),
        (M::RNR_RETRY, |attributes| attributes.rnr_retry = 8),
        (M::RNR_TIMER, |attributes| attributes.rnr_timer = 32),
        (M::READS_MAX, |attributes| attributes.reads_max = 129),
        (M::READS_SERVED_MAX, |attributes| attributes.reads_served_max = 129),
        (M::CURRENT_STATE, |attributes| attributes.current_state = ReadyToSend),
    ];
    for (mask, change) in wrong {
        let (mut network, qp) = in_state(QpType::Rc, SendQueueDrained);
        let mut attributes =
            Attributes { state: SendQueueDrained, current_state: SendQueueDrained, ..Attributes::default() };
        change(&mut attributes);
        let result = modify(&mut network, qp, &attributes, mask | M::STATE, Some(address(0)));
        assert_eq!(result, Err(Refused::Invalid), "{mask:?}");
    }
    for path_mtu in [0, 6] {
        let (mut network, qp) = in_state(QpType::Uc, Init);
        let attributes = Attributes { state: ReadyToReceive, path_mtu, ..Attributes::default() };
        let mask = M::STATE | M::from_bits_retain(CONNECT);
        assert_eq!(modify(&mut network, qp, &attributes, mask, Some(address(0))), Err(Refused::Invalid));
    }
}

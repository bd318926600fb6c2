//! The attributes of a queue pair, and which of them each change of state requires and allows.

use crate::types::{Access, AddressVector, Gid, QpNumber, QpState, QpType};
use bitflags::bitflags;

bitflags! {
    /// Which attributes a change sets, with the bits of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttributeMask: u32 {
        /// The state.
        const STATE = 1;
        /// The state that the caller expects now.
        const CURRENT_STATE = 1 << 1;
        /// An event when the send queue is drained.
        const DRAINED_EVENT = 1 << 2;
        /// The rights of the peer.
        const ACCESS = 1 << 3;
        /// The index of the P_Key.
        const P_KEY_INDEX = 1 << 4;
        /// The port.
        const PORT = 1 << 5;
        /// The Q_Key.
        const Q_KEY = 1 << 6;
        /// The address of the peer.
        const ADDRESS = 1 << 7;
        /// The path MTU.
        const PATH_MTU = 1 << 8;
        /// The timeout.
        const TIMEOUT = 1 << 9;
        /// The number of retries.
        const RETRY_COUNT = 1 << 10;
        /// The number of retries while the peer has no receive request.
        const RNR_RETRY = 1 << 11;
        /// The first PSN of the peer.
        const RECEIVE_PSN = 1 << 12;
        /// Reads and atomic operations of this side.
        const READS_MAX = 1 << 13;
        /// The alternate path.
        const ALTERNATE_PATH = 1 << 14;
        /// The pause of the peer while there is no receive request.
        const RNR_TIMER = 1 << 15;
        /// The first PSN of this side.
        const SEND_PSN = 1 << 16;
        /// Reads and atomic operations of the peer.
        const READS_SERVED_MAX = 1 << 17;
        /// The state of path migration.
        const MIGRATION = 1 << 18;
        /// The capacities.
        const CAPACITIES = 1 << 19;
        /// The queue pair of the peer.
        const DESTINATION = 1 << 20;
    }
}

/// The attributes of a queue pair that `ibv_modify_qp` sets.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the attributes of the standard")]
pub struct Attributes {
    pub state: QpState,
    pub current_state: QpState,
    /// An event follows when the send queue is drained.
    pub drained_event: bool,
    pub access: Access,
    pub p_key_index: u16,
    pub port: u8,
    pub q_key: u32,
    /// The address of the peer. A zero GID means that the address has none.
    pub address: AddressVector,
    /// The code of the path MTU: 1 for 256 bytes to 5 for 4096.
    pub path_mtu: u8,
    /// The code of the timeout: 4.096 µs × 2^timeout, or none for 0.
    pub timeout: u8,
    pub retry_count: u8,
    /// The number of retries while the peer has no receive request; 7 means without end.
    pub rnr_retry: u8,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub reads_max: u8,
    pub reads_served_max: u8,
    /// The code of the time after which the peer tries again when there is no receive request.
    pub rnr_timer: u8,
    pub destination: QpNumber,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            current_state: QpState::Reset,
            drained_event: false,
            access: Access::empty(),
            p_key_index: 0,
            port: 1,
            q_key: 0,
            address: AddressVector { gid: Gid::default(), ..AddressVector::default() },
            path_mtu: 5,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            receive_psn: 0,
            send_psn: 0,
            reads_max: 0,
            reads_served_max: 0,
            rnr_timer: 0,
            destination: QpNumber(0),
        }
    }
}

/// The attributes that a change of state requires, and those that it allows besides. None if the standard has no such change.
pub(crate) fn rules(kind: QpType, from: QpState, to: QpState) -> Option<(AttributeMask, AttributeMask)> {
    use AttributeMask as M;
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
    let datagram = kind == QpType::Ud;
    let reliable = kind == QpType::Rc;
    let begin = M::P_KEY_INDEX | M::PORT | if datagram { M::Q_KEY } else { M::ACCESS };
    let while_running = match kind {
        QpType::Ud => M::CURRENT_STATE | M::Q_KEY,
        QpType::Uc => M::CURRENT_STATE | M::ACCESS | M::ALTERNATE_PATH | M::MIGRATION,
        QpType::Rc => M::CURRENT_STATE | M::ACCESS | M::ALTERNATE_PATH | M::MIGRATION | M::RNR_TIMER,
    };
    Some(match (from, to) {
        (_, Reset | Error) => (M::empty(), M::empty()),
        (Reset, Init) => (begin, M::empty()),
        (Init, Init) => (M::empty(), begin),
        (Init, ReadyToReceive) if datagram => (M::empty(), M::P_KEY_INDEX | M::Q_KEY),
        (Init, ReadyToReceive) => {
            let connect = M::ADDRESS | M::PATH_MTU | M::DESTINATION | M::RECEIVE_PSN;
            let serve = if reliable { M::READS_SERVED_MAX | M::RNR_TIMER } else { M::empty() };
            (connect | serve, M::ALTERNATE_PATH | M::ACCESS | M::P_KEY_INDEX)
        }
        (ReadyToReceive, ReadyToSend) => {
            let retry = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::READS_MAX;
            (M::SEND_PSN | if reliable { retry } else { M::empty() }, while_running)
        }
        (ReadyToSend, ReadyToSend) => (M::empty(), while_running),
        (SendQueueDrained, ReadyToSend) => (M::empty(), while_running),
        (SendQueueError, ReadyToSend) if !reliable => {
            (M::empty(), M::CURRENT_STATE | if datagram { M::Q_KEY } else { M::ACCESS })
        }
        (ReadyToSend, SendQueueDrained) => (M::empty(), M::DRAINED_EVENT),
        (SendQueueDrained, SendQueueDrained) => {
            let path = M::ALTERNATE_PATH | M::MIGRATION | M::ADDRESS | M::ACCESS | M::P_KEY_INDEX;
            let retry = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::READS_MAX | M::READS_SERVED_MAX;
            let optional = match kind {
                QpType::Ud => M::P_KEY_INDEX | M::Q_KEY,
                QpType::Uc => path,
                QpType::Rc => path | retry | M::PORT | M::RNR_TIMER,
            };
            (M::empty(), optional)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueError};

    #[test]
    fn rules_follow_the_standard() {
        let required = |kind, from, to| rules(kind, from, to).map(|(required, _)| required.bits());
        assert_eq!(required(QpType::Rc, Reset, Init), Some(0x38));
        assert_eq!(required(QpType::Ud, Reset, Init), Some(0x70));
        assert_eq!(required(QpType::Rc, Init, ReadyToReceive), Some(0x12_9180));
        assert_eq!(required(QpType::Uc, Init, ReadyToReceive), Some(0x10_1180));
        assert_eq!(required(QpType::Rc, ReadyToReceive, ReadyToSend), Some(0x1_2e00));
        assert_eq!(required(QpType::Uc, ReadyToReceive, ReadyToSend), Some(0x1_0000));
        assert_eq!(required(QpType::Rc, Error, Reset), Some(0));
        assert_eq!(required(QpType::Ud, SendQueueError, ReadyToSend), Some(0));
        for (from, to) in [(Reset, ReadyToReceive), (Init, ReadyToSend), (Error, Init), (ReadyToSend, Init)] {
            assert_eq!(required(QpType::Rc, from, to), None);
        }
        assert_eq!(required(QpType::Rc, SendQueueError, ReadyToSend), None);
    }
}

//! Rules of the standard that the model of whole programs cannot express well.

mod connections;
mod direct;
mod failures;
mod look_ups;
mod objects;

use crate::memory::{READ, WRITE};
use crate::network::{Network, address, domain};
use crate::setup::*;
use Status::{
    Flushed, LocalLength, LocalProtection, RemoteAccess, RemoteInvalidRequest, RemoteOperation, RetryExceeded, Success,
};
use isthmus_verbs::{
    Access, AddressVector, AtomicOperation, AttributeMask, Attributes, CompletionKind, Gid, Key, Operation, QpNumber,
    QpState, QpType, ReceiveRequest, Refused, SendFlags, Sge, Status,
};

const SEND: Operation = Operation::Send { immediate: None };

fn write_to(sge: Sge) -> Operation {
    Operation::Write { remote_addr: sge.addr, rkey: Key(sge.lkey), immediate: None }
}

fn read_of(sge: Sge) -> Operation {
    Operation::Read { remote_addr: sge.addr, rkey: Key(sge.lkey) }
}

fn rc() -> (Network, Qp, Qp) {
    pair(QpType::Rc, &Options::default())
}

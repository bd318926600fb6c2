//! Batches and completion queues as programs use them, without a device.

use super::poll;
use super::post::Batch;
use crate::abi::consts::*;
use crate::abi::objects::IbvDataBuf;
use crate::abi::queries::IbvCqInitAttrEx;
use isthmus_verbs::{AddressVector, Cq, Key, Operation, Pd, QpInit, QpNumber, QpType, SendFlags, Sge};
use rustix::io::Errno;

const SEND: Operation = Operation::Send { immediate: None };
const SIGNALED: u32 = SendFlags::SIGNALED.bits();

fn batch(kind: QpType) -> Batch {
    let (pd, cq) = (Pd::from_number(1), Cq::from_number(2));
    Batch::new(&QpInit {
        kind,
        pd,
        send_cq: cq,
        receive_cq: cq,
        srq: None,
        signal_all: false,
        sends_max: 3,
        receives_max: 1,
        send_sges_max: 2,
        receive_sges_max: 1,
        inline_max: 8,
    })
}

fn set_inline(batch: &mut Batch, buffers: &[&[u8]]) {
    let buffers =
        buffers.iter().map(|bytes| IbvDataBuf { addr: bytes.as_ptr().cast_mut().cast(), length: bytes.len() });
    // SAFETY: the buffers are live.
    unsafe { batch.set_inline(buffers) };
}

fn error_of(kind: QpType, build: impl FnOnce(&mut Batch)) -> Option<Errno> {
    let mut batch = batch(kind);
    build(&mut batch);
    batch.error()
}

#[test]
fn requests_are_built_with_their_ranges_and_copies_of_inline_bytes() {
    let mut batch = batch(QpType::Rc);
    let sges = [Sge { addr: 1, len: 2, lkey: 3 }, Sge { addr: 4, len: 5, lkey: 6 }];
    let write = Operation::Write { remote_addr: 7, rkey: Key(8), immediate: Some(9) };
    // Twice: nothing of the first batch is left.
    for round in 0..2 {
        batch.clear();
        batch.begin(10, SIGNALED | SendFlags::INLINE.bits(), SEND);
        batch.set_ranges(sges.into_iter());
        let mut bytes = *b"abcdefgh";
        batch.begin(11, 0, write);
        set_inline(&mut batch, &[&bytes[..3], &[], &bytes[3..]]);
        batch.begin(12, SIGNALED, SEND);
        bytes.fill(0);
        assert_eq!(batch.error(), None);
        let mut seen = 0;
        let visited = batch.visit(|at, request| {
            let flags = request.flags.bits();
            match at {
                0 => {
                    assert_eq!((request.wr_id, flags, request.operation, request.sges), (10, SIGNALED, SEND, &sges[..]))
                }
                1 => {
                    assert_eq!((request.wr_id, request.operation), (11, write));
                    let [Sge { addr, len: 8, .. }] = request.sges else { panic!("{:?}", request.sges) };
                    // SAFETY: inline bytes lie in the batch.
                    let copy = unsafe { std::slice::from_raw_parts(*addr as *const u8, 8) };
                    assert_eq!((copy, flags), (&b"abcdefgh"[..], SendFlags::INLINE.bits()));
                }
                _ => assert_eq!((request.wr_id, flags, request.sges.len()), (12, SIGNALED, 0)),
            }
            seen += 1;
            if at == 1 && round == 1 { Err(Errno::NOMEM) } else { Ok(()) }
        });
        assert_eq!((visited, seen), if round == 0 { (Ok(()), 3) } else { (Err(Errno::NOMEM), 2) });
    }
}

#[test]
fn the_first_error_stays_until_the_next_batch() {
    let mut batch = batch(QpType::Rc);
    for _ in 0..4 {
        batch.begin(1, 0, SEND);
    }
    assert_eq!(batch.error(), Some(Errno::NOMEM));
    batch.begin(1, 1 << 4, SEND);
    assert_eq!(batch.error(), Some(Errno::NOMEM));
    batch.clear();
    assert_eq!(batch.error(), None);
}

#[test]
fn values_that_no_request_takes_are_refused() {
    let sge = Sge { addr: 1, len: 1, lkey: 1 };
    let to = (AddressVector::default(), QpNumber(1), 2);
    let invalid = Some(Errno::INVAL);
    assert_eq!(error_of(QpType::Rc, |batch| batch.set_ranges([sge].into_iter())), invalid, "no request was begun");
    assert_eq!(error_of(QpType::Rc, |batch| set_inline(batch, &[b"a"])), invalid);
    assert_eq!(error_of(QpType::Ud, |batch| batch.set_destination(Some(to))), invalid);
    let refused = |kind, set: &dyn Fn(&mut Batch)| {
        error_of(kind, |batch| {
            batch.begin(1, 0, SEND);
            set(batch);
        })
    };
    assert_eq!(refused(QpType::Rc, &|batch| batch.begin(2, 1 << 4, SEND)), invalid);
    assert_eq!(refused(QpType::Rc, &|batch| batch.set_ranges([sge; 3].into_iter())), invalid);
    assert_eq!(refused(QpType::Rc, &|batch| batch.set_ranges([sge; 2].into_iter())), None);
    assert_eq!(refused(QpType::Rc, &|batch| set_inline(batch, &[b"1234", b"56789"])), invalid);
    assert_eq!(refused(QpType::Rc, &|batch| set_inline(batch, &[b"1234", b"5678"])), None);
    assert_eq!(refused(QpType::Rc, &|batch| batch.set_destination(Some(to))), invalid);
    assert_eq!(refused(QpType::Ud, &|batch| batch.set_destination(None)), invalid);
    assert_eq!(refused(QpType::Ud, &|batch| batch.set_destination(Some(to))), None);
}

#[test]
fn completion_queues_have_the_standard_values_and_no_time_stamps() {
    // SAFETY: null pointers and zeroes are valid in it.
    let empty: IbvCqInitAttrEx = unsafe { std::mem::zeroed() };
    let with = |wc_flags, comp_mask, flags| poll::check(&IbvCqInitAttrEx { wc_flags, comp_mask, flags, ..empty });
    assert_eq!(with(0x7f, CQ_INIT_ATTR_MASK_FLAGS, CREATE_CQ_ATTR_SINGLE_THREADED), Ok(()));
    assert_eq!(with(0, 0, u32::MAX), Ok(()), "without its bit, the member is not looked at");
    let missing = Err(Errno::OPNOTSUPP);
    for at in 7..64 {
        assert_eq!(with(1 << at, 0, 0), missing);
    }
    assert_eq!((with(0, 2, 0), with(0, CQ_INIT_ATTR_MASK_FLAGS, 2)), (missing, missing));
}

use super::attributes::{address, address_attributes};
use super::creation::qp_type;
use super::*;
use crate::abi::consts::*;
use crate::abi::objects::{AhObject, CqObject, Embeds, IbvCq, IbvSrq, SrqObject};
use crate::abi::queries::*;
use crate::abi::requests::*;
use isthmus_verbs::*;
use std::ffi::c_int;
use std::ptr::null_mut;

const GIDS: [Gid; 2] = [Gid([1; 16]), Gid([2; 16])];

fn ranges(len: usize) -> Vec<IbvSge> {
    (0..len).map(|at| IbvSge { addr: 0x1000 * at as u64, length: at as u32 + 1, lkey: 7 }).collect()
}

/// A request with all members of the union set to numbers.
fn request(opcode: u32, list: &mut [IbvSge]) -> IbvSendWr {
    let wr = SendArguments { atomic: AtomicArguments { remote_addr: 0x10, compare_add: 0x20, swap: 0x30, rkey: 0x40 } };
    let sg_list = list.as_mut_ptr();
    let num_sge = list.len() as c_int;
    IbvSendWr {
        wr_id: 9,
        next: null_mut(),
        sg_list,
        num_sge,
        opcode,
        send_flags: 0,
        imm_data: 5,
        wr,
        remote_srqn: 0,
        extra: [0; 6],
    }
}

fn with_rdma(mut wr: IbvSendWr) -> IbvSendWr {
    wr.wr = SendArguments { rdma: RdmaArguments { remote_addr: 0x50, rkey: 0x60 } };
    wr
}

fn operation_of(wr: &IbvSendWr) -> Result<Operation, Errno> {
    let mut buffer = SgeBuffer::default();
    // SAFETY: the request has no ranges or those of a live list, and no address is read for this type.
    unsafe { send_request(wr, QpType::Rc, &mut buffer) }.map(|request| request.operation)
}

#[test]
fn every_opcode_becomes_its_operation() {
    let (rkey, remote_addr) = (Key(0x60), 0x50);
    let send = |opcode| operation_of(&request(opcode, &mut []));
    let rdma = |opcode| operation_of(&with_rdma(request(opcode, &mut [])));
    assert_eq!(send(WR_SEND), Ok(Operation::Send { immediate: None }));
    assert_eq!(send(WR_SEND_WITH_IMM), Ok(Operation::Send { immediate: Some(5) }));
    assert_eq!(rdma(WR_RDMA_WRITE), Ok(Operation::Write { remote_addr, rkey, immediate: None }));
    assert_eq!(rdma(WR_RDMA_WRITE_WITH_IMM), Ok(Operation::Write { remote_addr, rkey, immediate: Some(5) }));
    assert_eq!(rdma(WR_RDMA_READ), Ok(Operation::Read { remote_addr, rkey }));
    let atomic = |atomic| Ok(Operation::Atomic { remote_addr: 0x10, rkey: Key(0x40), atomic });
    assert_eq!(send(WR_ATOMIC_CMP_AND_SWP), atomic(AtomicOperation::CompareSwap { compare: 0x20, swap: 0x30 }));
    assert_eq!(send(WR_ATOMIC_FETCH_AND_ADD), atomic(AtomicOperation::FetchAdd(0x20)));
    for missing in [WR_LOCAL_INV, WR_BIND_MW, WR_SEND_WITH_INV, WR_TSO, WR_DRIVER1, WR_ATOMIC_WRITE] {
        assert_eq!(send(missing), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(send(99), Err(Errno::INVAL));
}

#[test]
fn send_flags_pass_and_unknown_ones_are_refused() {
    let mut buffer = SgeBuffer::default();
    for bits in 0..16 {
        let mut wr = request(WR_SEND, &mut []);
        wr.send_flags = bits;
        // SAFETY: the request has no ranges.
        let request = unsafe { send_request(&wr, QpType::Uc, &mut buffer) }.unwrap();
        assert_eq!((request.flags.bits(), request.wr_id), (bits, 9));
    }
    let mut wr = request(WR_SEND, &mut []);
    wr.send_flags = 1 << 4;
    assert_eq!(operation_of(&wr), Err(Errno::INVAL));
}

#[test]
fn lists_of_any_allowed_length_are_read_and_short_ones_do_not_allocate() {
    let mut buffer = SgeBuffer::default();
    for len in [0, 1, 4, 5, limits::SGES_MAX as usize, 2] {
        let mut list = ranges(len);
        let wr = request(WR_SEND, &mut list);
        // SAFETY: the list is live.
        let sges = unsafe { send_request(&wr, QpType::Rc, &mut buffer) }.unwrap().sges;
        let expected: Vec<Sge> =
            list.iter().map(|sge| Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey }).collect();
        assert_eq!(sges, expected);
        if len <= 4 {
            assert!(sges.is_empty() || std::ptr::eq(sges.as_ptr(), buffer.few.as_ptr()));
        }
        let wr = IbvRecvWr { wr_id: 3, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: len as c_int };
        // SAFETY: the list is live.
        let receive = unsafe { receive_request(&wr, &mut buffer) }.unwrap();
        assert_eq!((receive.wr_id, receive.sges), (3, &expected[..]));
    }
    let mut list = ranges(1);
    for num_sge in [-1, limits::SGES_MAX as c_int + 1] {
        let wr = IbvSendWr { num_sge, ..request(WR_SEND, &mut list) };
        assert_eq!(operation_of(&wr), Err(Errno::INVAL));
    }
    let wr = IbvSendWr { sg_list: null_mut(), ..request(WR_SEND, &mut list) };
    assert_eq!(operation_of(&wr), Err(Errno::INVAL));
}

#[test]
fn datagrams_take_the_address_of_the_request() {
    let address = AddressVector { gid: GIDS[0], source_gid: GIDS[1], service_level: 2 };
    // SAFETY: null pointers and zeroes are valid in it.
    let mut ah: AhObject = unsafe { std::mem::zeroed() };
    ah.address = address;
    let mut buffer = SgeBuffer::default();
    let mut wr = request(WR_SEND_WITH_IMM, &mut []);
    wr.wr = SendArguments {
        ud: UdArguments { ah: AhObject::embedded(&raw mut ah), remote_qpn: 0xff00_0007, remote_qkey: 8 },
    };
    // SAFETY: the address is live.
    let sent = unsafe { send_request(&wr, QpType::Ud, &mut buffer) }.unwrap();
    assert_eq!(sent.datagram, Some((address, QpNumber(7), 8)));
    assert_eq!(sent.operation, Operation::Send { immediate: Some(5) });
    // The union holds something else for other operations: it is not read as a pointer.
    let wr = with_rdma(request(WR_RDMA_WRITE, &mut []));
    // SAFETY: as above.
    assert_eq!(unsafe { send_request(&wr, QpType::Ud, &mut buffer) }.err(), Some(Errno::INVAL));
    let mut wr = request(WR_SEND, &mut []);
    wr.wr = SendArguments { ud: UdArguments { ah: null_mut(), remote_qpn: 1, remote_qkey: 1 } };
    // SAFETY: the address is null.
    assert_eq!(unsafe { send_request(&wr, QpType::Ud, &mut buffer) }.err(), Some(Errno::INVAL));
}

#[test]
fn completions_have_the_flags_and_numbers_of_the_interface() {
    let mut entry = Completion {
        wr_id: u64::MAX,
        status: Status::Success,
        kind: CompletionKind::ReceiveWriteImmediate,
        len: 100,
        immediate: Some(0x0102_0304),
        qp: QpNumber(17),
        source_qp: QpNumber(18),
        has_grh: true,
        service_level: 3,
        solicited: true,
    };
    let expected = IbvWc {
        wr_id: u64::MAX,
        status: 0,
        opcode: 129,
        byte_len: 100,
        imm_data: 0x0102_0304,
        qp_num: 17,
        src_qp: 18,
        wc_flags: 3,
        sl: 3,
        ..IbvWc::default()
    };
    assert_eq!(completion(&entry), expected);
    entry.immediate = None;
    assert_eq!((completion(&entry).wc_flags, completion(&entry).imm_data), (WC_GRH, 0));
    entry.has_grh = false;
    entry.status = Status::RnrRetryExceeded;
    assert_eq!((completion(&entry).wc_flags, completion(&entry).status), (0, 13));
}

#[test]
fn optional_access_flags_are_ignored_and_missing_rights_refused() {
    for bits in 0..16 {
        let descriptive = ACCESS_HUGETLB | ACCESS_ZERO_BASED | ACCESS_OPTIONAL_RANGE;
        assert_eq!(access(bits).map(|access| access.bits()), Ok(bits));
        assert_eq!(access(bits | descriptive), access(bits));
    }
    assert_eq!(access(ACCESS_MW_BIND), Err(Errno::OPNOTSUPP));
    assert_eq!(access(ACCESS_ON_DEMAND | 1), Err(Errno::OPNOTSUPP));
    assert_eq!(access(1 << 8), Err(Errno::INVAL));
    assert!(is_zero_based(ACCESS_ZERO_BASED | 1) && !is_zero_based(1));
}

#[test]
fn refusals_have_error_numbers() {
    assert_eq!(errno(Refused::Invalid), Errno::INVAL);
    assert_eq!(errno(Refused::Full), Errno::NOMEM);
    assert_eq!(errno(Refused::NumbersMissing), Errno::NOMEM);
    assert_eq!(errno(Refused::Busy), Errno::BUSY);
    assert_eq!(errno(Refused::RouteMissing(GIDS[0], QpNumber(1))), Errno::HOSTUNREACH);
    assert_eq!(errno(Refused::Unsupported), Errno::OPNOTSUPP);
}

#[test]
fn addresses_resolve_the_index_of_the_gid_and_return() {
    let dgid = IbvGid { raw: [9; 16] };
    let grh = IbvGlobalRoute { dgid, sgid_index: 1, ..IbvGlobalRoute::default() };
    let attr = IbvAhAttr { grh, sl: 5, is_global: 1, port_num: 1, ..IbvAhAttr::default() };
    let resolved = address(&attr, &GIDS).unwrap();
    assert_eq!(resolved, AddressVector { gid: Gid([9; 16]), source_gid: GIDS[1], service_level: 5 });
    let back = address_attributes(&resolved, &GIDS);
    assert_eq!((back.grh.dgid, back.grh.sgid_index, back.sl, back.is_global, back.port_num), (dgid, 1, 5, 1, 1));
    assert_eq!(address(&back, &GIDS), Ok(resolved));

    let local = address(&IbvAhAttr { is_global: 0, ..attr }, &GIDS).unwrap();
    assert_eq!(local, AddressVector { service_level: 5, ..AddressVector::default() });
    assert_eq!(address_attributes(&local, &GIDS).is_global, 0);
    assert_eq!(address_of_handle(&IbvAhAttr { is_global: 0, ..attr }, &GIDS), Err(Errno::INVAL));
    assert_eq!(address_of_handle(&attr, &GIDS), Ok(resolved));
    assert_eq!(address(&attr, &GIDS[..1]), Err(Errno::INVAL));
    assert_eq!(address(&IbvAhAttr { port_num: 2, ..attr }, &GIDS), Err(Errno::INVAL));
}

#[test]
fn completion_vectors_that_the_device_lacks_are_refused() {
    assert_eq!(completion_vector(0), Ok(()));
    assert_eq!(completion_vector(1), Err(Errno::INVAL));
    assert_eq!(completion_vector((-1_i32).cast_unsigned()), Err(Errno::INVAL));
}

fn queue_pair() -> QpInit {
    let (pd, cq) = (Pd::from_number(1), Cq::from_number(2));
    QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: cq,
        receive_cq: cq,
        srq: None,
        signal_all: false,
        sends_max: 3,
        receives_max: 4,
        send_sges_max: 5,
        receive_sges_max: 6,
        inline_max: 7,
    }
}

/// Attributes that all differ.
fn numbers() -> IbvQpAttr {
    let grh = IbvGlobalRoute { dgid: IbvGid { raw: [9; 16] }, ..IbvGlobalRoute::default() };
    IbvQpAttr {
        qp_state: 2,
        cur_qp_state: 3,
        path_mtu: 4,
        qkey: 21,
        rq_psn: 22,
        sq_psn: 23,
        dest_qp_num: 24,
        qp_access_flags: 7,
        ah_attr: IbvAhAttr { grh, is_global: 1, port_num: 1, ..IbvAhAttr::default() },
        max_rd_atomic: 25,
        max_dest_rd_atomic: 26,
        min_rnr_timer: 27,
        port_num: 1,
        timeout: 28,
        retry_cnt: 6,
        rnr_retry: 7,
        ..IbvQpAttr::default()
    }
}

#[test]
fn attributes_pass_both_ways_under_their_bits() {
    let attr = numbers();
    let (values, mask) = attributes(&attr, AttributeMask::all().bits() as c_int, &GIDS).unwrap();
    assert_eq!(mask, AttributeMask::all());
    assert_eq!((values.state, values.current_state), (QpState::ReadyToReceive, QpState::ReadyToSend));
    let back = qp_attributes(QpState::ReadyToReceive, &values, &queue_pair(), &GIDS);
    assert_eq!((back.qp_state, back.cur_qp_state, back.path_mtu, back.qp_access_flags), (2, 2, 4, 7));
    assert_eq!((back.qkey, back.rq_psn, back.sq_psn, back.dest_qp_num), (21, 22, 23, 24));
    assert_eq!((back.max_rd_atomic, back.max_dest_rd_atomic, back.min_rnr_timer, back.timeout), (25, 26, 27, 28));
    assert_eq!(
        (back.port_num, back.retry_cnt, back.rnr_retry, back.ah_attr.grh.dgid),
        (1, 6, 7, attr.ah_attr.grh.dgid)
    );
    assert_eq!(
        back.cap,
        IbvQpCap { max_send_wr: 3, max_recv_wr: 4, max_send_sge: 5, max_recv_sge: 6, max_inline_data: 7 }
    );

    // Without its bit, an attribute is not looked at, and has its default value.
    let garbage =
        IbvQpAttr { qp_state: 99, path_mtu: 99, port_num: 99, qp_access_flags: u32::MAX, pkey_index: 99, ..attr };
    let (values, mask) = attributes(&garbage, AttributeMask::TIMEOUT.bits() as c_int, &[]).unwrap();
    assert_eq!((mask, values.timeout, values.q_key, values.state), (AttributeMask::TIMEOUT, 28, 0, QpState::Reset));
}

#[test]
fn invalid_attributes_are_refused() {
    let attr = numbers();
    let refused = |bit: AttributeMask, attr: IbvQpAttr| attributes(&attr, bit.bits() as c_int, &GIDS).err();
    assert_eq!(refused(AttributeMask::STATE, IbvQpAttr { qp_state: 7, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::CURRENT_STATE, IbvQpAttr { cur_qp_state: 8, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::PATH_MTU, IbvQpAttr { path_mtu: 0, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::PATH_MTU, IbvQpAttr { path_mtu: 6, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::PORT, IbvQpAttr { port_num: 2, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::P_KEY_INDEX, IbvQpAttr { pkey_index: 1, ..attr }), Some(Errno::INVAL));
    assert_eq!(refused(AttributeMask::ACCESS, IbvQpAttr { qp_access_flags: 1 << 4, ..attr }), Some(Errno::OPNOTSUPP));
    assert_eq!(attributes(&attr, 1 << 25, &GIDS).err(), Some(Errno::INVAL));
    let wide = IbvQpAttr { rq_psn: u32::MAX, dest_qp_num: u32::MAX, ..attr };
    let (values, _) = attributes(&wide, AttributeMask::all().bits() as c_int, &GIDS).unwrap();
    assert_eq!((values.receive_psn, values.destination), (0xff_ffff, QpNumber(0xff_ffff)));
}

#[test]
fn queue_pairs_are_created_from_the_objects_of_the_request() {
    // SAFETY: null pointers, empty functions and zeroes are valid in both.
    let (mut cq, mut srq): (CqObject, SrqObject) = unsafe { std::mem::zeroed() };
    (cq.cq, srq.srq) = (Cq::from_number(11), Srq::from_number(12));
    let cq: *mut IbvCq = CqObject::embedded(&raw mut cq);
    let srq: *mut IbvSrq = SrqObject::embedded(&raw mut srq);
    let cap = qp_capacities(&queue_pair());
    let mut attr =
        IbvQpInitAttr { qp_context: null_mut(), send_cq: cq, recv_cq: cq, srq, cap, qp_type: QPT_UD, sq_sig_all: 1 };
    // SAFETY: the objects are live, here and below.
    let init = unsafe { qp_init(&attr, Pd::from_number(3)) }.unwrap();
    assert_eq!((init.kind, init.pd, init.srq), (QpType::Ud, Pd::from_number(3), Some(Srq::from_number(12))));
    assert_eq!((init.send_cq, init.receive_cq, init.signal_all), (Cq::from_number(11), Cq::from_number(11), true));
    // A queue pair takes some bytes inline, also if the program does not ask for it.
    assert_eq!(qp_capacities(&init), IbvQpCap { max_inline_data: 64, ..cap });
    for (code, kind) in [(QPT_RC, QpType::Rc), (QPT_UC, QpType::Uc), (QPT_UD, QpType::Ud)] {
        assert_eq!(qp_type(code), Ok(kind));
    }
    attr.qp_type = 8;
    // SAFETY: as above.
    assert_eq!(unsafe { qp_init(&attr, Pd::from_number(3)) }.err(), Some(Errno::OPNOTSUPP));
    attr.recv_cq = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { qp_init(&attr, Pd::from_number(3)) }.err(), Some(Errno::INVAL));
}

#[test]
fn extensions_that_the_adapter_lacks_are_refused() {
    let pd = std::ptr::dangling_mut();
    // SAFETY: null pointers and zeroes are valid in it.
    let empty: IbvQpInitAttrEx = unsafe { std::mem::zeroed() };
    let attr =
        IbvQpInitAttrEx { comp_mask: QP_INIT_ATTR_PD, pd, send_ops_flags: u64::MAX, create_flags: u32::MAX, ..empty };
    assert_eq!(qp_send_operations(&empty), Err(Errno::INVAL));
    assert_eq!(qp_send_operations(&attr), Ok(0));
    let with = QP_INIT_ATTR_PD | QP_INIT_ATTR_SEND_OPS_FLAGS;
    assert_eq!(qp_send_operations(&IbvQpInitAttrEx { comp_mask: with, send_ops_flags: 0x7f, ..attr }), Ok(0x7f));
    assert_eq!(
        qp_send_operations(&IbvQpInitAttrEx { comp_mask: with, send_ops_flags: 1 << 7, ..attr }),
        Err(Errno::OPNOTSUPP)
    );
    let with = QP_INIT_ATTR_PD | QP_INIT_ATTR_CREATE_FLAGS;
    assert_eq!(qp_send_operations(&IbvQpInitAttrEx { comp_mask: with, ..attr }), Err(Errno::OPNOTSUPP));
    assert_eq!(qp_send_operations(&IbvQpInitAttrEx { comp_mask: QP_INIT_ATTR_PD | 2, ..attr }), Err(Errno::OPNOTSUPP));

    // SAFETY: null pointers and zeroes are valid in it.
    let empty: IbvSrqInitAttrEx = unsafe { std::mem::zeroed() };
    let attr = IbvSrqInitAttrEx { comp_mask: SRQ_INIT_ATTR_PD, pd, srq_type: 1, ..empty };
    assert_eq!(srq_init(&empty).err(), Some(Errno::INVAL));
    assert!(srq_init(&attr).is_ok(), "without its bit, the type is not looked at");
    let with = SRQ_INIT_ATTR_PD | SRQ_INIT_ATTR_TYPE;
    assert_eq!(srq_init(&IbvSrqInitAttrEx { comp_mask: with, ..attr }).err(), Some(Errno::OPNOTSUPP));
    assert!(srq_init(&IbvSrqInitAttrEx { comp_mask: with, srq_type: SRQT_BASIC, ..attr }).is_ok());
}

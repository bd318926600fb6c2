//! The operations of this provider. Those that are not here fail with `EOPNOTSUPP`.

use crate::abi::operations::VerbsContextOps34;
use crate::extended::{poll, post};
use crate::{device, queue_pairs, queues, regions};

/// The table for private ABI 34.
pub(crate) static OPERATIONS: VerbsContextOps34 = VerbsContextOps34 {
    alloc_pd: Some(regions::alloc_pd),
    create_ah: Some(regions::create_ah),
    create_cq: Some(queues::create_cq),
    create_cq_ex: Some(poll::create_cq_ex),
    create_qp: Some(queue_pairs::create_qp),
    create_qp_ex: Some(post::create_qp_ex),
    create_srq: Some(queues::create_srq),
    create_srq_ex: Some(queues::create_srq_ex),
    dealloc_pd: Some(regions::dealloc_pd),
    dereg_mr: Some(regions::dereg_mr),
    destroy_ah: Some(regions::destroy_ah),
    destroy_cq: Some(queues::destroy_cq),
    destroy_qp: Some(queue_pairs::destroy_qp),
    destroy_srq: Some(queues::destroy_srq),
    free_context: Some(device::free_context),
    modify_qp: Some(queue_pairs::modify_qp),
    modify_srq: Some(queues::modify_srq),
    poll_cq: Some(queues::poll_cq),
    post_recv: Some(queue_pairs::post_recv),
    post_send: Some(queue_pairs::post_send),
    post_srq_recv: Some(queues::post_srq_recv),
    query_device_ex: Some(device::query_device_ex),
    query_port: Some(device::query_port),
    query_qp: Some(queue_pairs::query_qp),
    query_srq: Some(queues::query_srq),
    reg_mr: Some(regions::reg_mr),
    req_notify_cq: Some(queues::req_notify_cq),
    rereg_mr: Some(regions::rereg_mr),
    resize_cq: Some(queues::resize_cq),
    ..VerbsContextOps34::EMPTY
};

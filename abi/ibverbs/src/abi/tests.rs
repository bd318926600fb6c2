//! Sizes, offsets and numbers against the headers that are installed: a C program prints them.

use super::cm;
use super::consts::*;
use super::context::*;
use super::device::*;
use super::objects::*;
use super::queries::*;
use super::requests::*;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// Questions in C, and our values.
type Facts = Vec<(String, usize)>;

/// The size of a structure and the offsets of fields that are named as in C.
macro_rules! layout {
    ($facts:ident, $($ours:ident as $theirs:literal { $($field:ident)* })*) => {$(
        $facts.push((format!("sizeof(struct {})", $theirs), size_of::<$ours>()));
        $($facts.push((format!("offsetof(struct {}, {})", $theirs, stringify!($field)), offset_of!($ours, $field)));)*
    )*};
}

/// Offsets of fields with another name in C.
macro_rules! renamed {
    ($facts:ident, $($ours:ident.$field:ident as $theirs:literal . $name:literal;)*) => {
        $($facts.push((format!("offsetof(struct {}, {})", $theirs, $name), offset_of!($ours, $field)));)*
    };
}

/// Numbers that are called as in C, without the prefix.
macro_rules! values {
    ($facts:ident, $($name:ident)*) => {
        $($facts.push((format!("(size_t)(IBV_{})", stringify!($name)), $name as usize));)*
    };
}

fn devices(facts: &mut Facts) {
    layout!(facts,
        IbvDevice as "ibv_device" { node_type transport_type name dev_name dev_path ibdev_path }
        IbvContextOps as "ibv_context_ops" { alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv }
        IbvContext as "ibv_context" { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat }
        VerbsContext as "verbs_context" { query_port advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters
            destroy_counters reg_dm_mr alloc_dm free_dm modify_flow_action_esp destroy_flow_action create_flow_action_esp
            modify_qp_rate_limit alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops destroy_rwq_ind_table
            create_rwq_ind_table destroy_wq modify_wq create_wq query_rt_values create_cq_ex query_device_ex open_qp create_qp_ex
            get_srq_num create_srq_ex open_xrcd close_xrcd sz context }
    );
    renamed!(facts,
        IbvContextOps.query_device_compat as "ibv_context_ops"."_compat_query_device";
        IbvContextOps.query_port_compat as "ibv_context_ops"."_compat_query_port";
        IbvContextOps.cq_event_compat as "ibv_context_ops"."_compat_cq_event";
        IbvContextOps.async_event_compat as "ibv_context_ops"."_compat_async_event";
        VerbsContext.private as "verbs_context"."priv";
        VerbsContext.create_flow as "verbs_context"."ibv_create_flow";
        VerbsContext.destroy_flow as "verbs_context"."ibv_destroy_flow";
    );
}

fn objects(facts: &mut Facts) {
    layout!(facts,
        IbvPd as "ibv_pd" { context handle }
        IbvMr as "ibv_mr" { context pd addr length handle lkey rkey }
        IbvCompChannel as "ibv_comp_channel" { context fd refcnt }
        IbvCq as "ibv_cq" { context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed }
        IbvCqEx as "ibv_cq_ex" { comp_mask status wr_id start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len
            read_imm_data read_qp_num read_src_qp read_wc_flags read_slid read_sl read_dlid_path_bits read_completion_ts read_cvlan
            read_flow_tag read_tm_info read_completion_wallclock_ns }
        IbvQp as "ibv_qp" { context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond events_completed }
        IbvQpEx as "ibv_qp_ex" { comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv wr_rdma_read
            wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_send_inv wr_send_tso wr_set_ud_addr wr_set_xrc_srqn
            wr_set_inline_data wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort wr_atomic_write }
        IbvDataBuf as "ibv_data_buf" { addr length }
        IbvSrq as "ibv_srq" { context srq_context pd handle mutex cond events_completed }
        IbvAh as "ibv_ah" { context pd handle }
    );
}

fn requests(facts: &mut Facts) {
    layout!(facts,
        IbvSge as "ibv_sge" { addr length lkey }
        IbvSendWr as "ibv_send_wr" { wr_id next sg_list num_sge opcode send_flags imm_data wr }
        IbvRecvWr as "ibv_recv_wr" { wr_id next sg_list num_sge }
        IbvWc as "ibv_wc" { wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits }
        IbvAsyncEvent as "ibv_async_event" { element event_type }
    );
    renamed!(facts,
        IbvSendWr.remote_srqn as "ibv_send_wr"."qp_type.xrc.remote_srqn";
        IbvSendWr.extra as "ibv_send_wr"."bind_mw";
    );
    let wr = offset_of!(IbvSendWr, wr);
    for (name, offset) in [
        ("wr.rdma.remote_addr", offset_of!(RdmaArguments, remote_addr)),
        ("wr.rdma.rkey", offset_of!(RdmaArguments, rkey)),
        ("wr.atomic.remote_addr", offset_of!(AtomicArguments, remote_addr)),
        ("wr.atomic.compare_add", offset_of!(AtomicArguments, compare_add)),
        ("wr.atomic.swap", offset_of!(AtomicArguments, swap)),
        ("wr.atomic.rkey", offset_of!(AtomicArguments, rkey)),
        ("wr.ud.ah", offset_of!(UdArguments, ah)),
        ("wr.ud.remote_qpn", offset_of!(UdArguments, remote_qpn)),
        ("wr.ud.remote_qkey", offset_of!(UdArguments, remote_qkey)),
    ] {
        facts.push((format!("offsetof(struct ibv_send_wr, {name})"), wr + offset));
    }
}

fn queries(facts: &mut Facts) {
    layout!(facts,
        IbvDeviceAttr as "ibv_device_attr" { fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver
            max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom
            max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp
            max_mcast_grp max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr max_srq_sge
            max_pkeys local_ca_ack_delay phys_port_cnt }
        IbvDeviceAttrEx as "ibv_device_attr_ex" { orig_attr comp_mask odp_caps completion_timestamp_mask hca_core_clock
            device_cap_flags_ex tso_caps rss_caps max_wq_type_rq packet_pacing_caps raw_packet_caps tm_caps cq_mod_caps max_dm_size
            pci_atomic_caps xrc_odp_caps phys_port_cnt_ex }
        IbvGlobalRoute as "ibv_global_route" { dgid flow_label sgid_index hop_limit traffic_class }
        IbvAhAttr as "ibv_ah_attr" { grh dlid sl src_path_bits static_rate is_global port_num }
        IbvQpCap as "ibv_qp_cap" { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        IbvQpAttr as "ibv_qp_attr" { qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap
            ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
            min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit }
        IbvQpInitAttr as "ibv_qp_init_attr" { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        IbvQpInitAttrEx as "ibv_qp_init_attr_ex" { qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags
            max_tso_header rwq_ind_tbl rx_hash_conf source_qpn send_ops_flags }
        IbvSrqAttr as "ibv_srq_attr" { max_wr max_sge srq_limit }
        IbvSrqInitAttr as "ibv_srq_init_attr" { srq_context attr }
        IbvSrqInitAttrEx as "ibv_srq_init_attr_ex" { srq_context attr comp_mask srq_type pd xrcd cq tm_cap }
        IbvCqInitAttrEx as "ibv_cq_init_attr_ex" { cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain }
        IbvQueryDeviceExInput as "ibv_query_device_ex_input" { comp_mask }
    );
    facts.push(("sizeof(union ibv_gid)".to_owned(), size_of::<IbvGid>()));
    facts.push(("_Alignof(union ibv_gid)".to_owned(), align_of::<IbvGid>()));
    facts.push(("sizeof(struct ibv_port_attr)".to_owned(), PORT_ATTR_BYTES_34));
    macro_rules! port {
        ($($field:ident)*) => {$(
            facts.push((format!("offsetof(struct ibv_port_attr, {})", stringify!($field)), offset_of!(IbvPortAttr, $field)));
        )*};
    }
    port!(state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid lmc
        max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state link_layer flags port_cap_flags2);
}

/// The commands of librdmacm. The structures that end with options of vendors are longer in C.
fn connections(facts: &mut Facts) {
    use cm::*;
    layout!(facts,
        Header as "rdma_ucm_cmd_hdr" {}
        CreateId as "rdma_ucm_create_id" { uid response qp_type }
        DestroyId as "rdma_ucm_destroy_id" { response id }
        ResolveRoute as "rdma_ucm_resolve_route" { id timeout_ms }
        Query as "rdma_ucm_query" { response id option }
        ConnectionParameters as "rdma_ucm_conn_param" { qkey private_data private_data_len srq responder_resources initiator_depth
            flow_control retry_count rnr_retry_count valid }
        DatagramParameters as "rdma_ucm_ud_param" { qkey private_data private_data_len }
        AddressHandle as "ib_uverbs_ah_attr" { dlid sl src_path_bits static_rate is_global }
        Listen as "rdma_ucm_listen" { id backlog }
        Reject as "rdma_ucm_reject" { id private_data_len reason private_data }
        InitQpAttr as "rdma_ucm_init_qp_attr" { response id }
        QpAttr as "ib_uverbs_qp_attr" { path_mtu path_mig_state qkey rq_psn sq_psn pkey_index alt_pkey_index
            en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry }
        Notify as "rdma_ucm_notify" { id event }
        SetOption as "rdma_ucm_set_option" { id level }
        MigrateId as "rdma_ucm_migrate_id" { response id fd }
        PathRecord as "ib_user_path_rec" { dgid sgid raw_traffic flow_label reversible mtu pkey hop_limit traffic_class numb_path sl
            mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference }
        BindIp as "rdma_ucm_bind_ip" { response id }
        ResolveIp as "rdma_ucm_resolve_ip" { id timeout_ms }
    );
    renamed!(facts,
        Connect.id as "rdma_ucm_connect"."id";
        Accept.parameters as "rdma_ucm_accept"."conn_param";
        Accept.id as "rdma_ucm_accept"."id";
        EventResponse.event as "rdma_ucm_event_resp"."event";
        EventResponse.status as "rdma_ucm_event_resp"."status";
        EventResponse.parameters as "rdma_ucm_event_resp"."param";
        Route.paths as "rdma_ucm_query_route_resp"."ib_route";
        Route.source as "rdma_ucm_query_route_resp"."src_addr";
        Route.destination as "rdma_ucm_query_route_resp"."dst_addr";
        Route.num_paths as "rdma_ucm_query_route_resp"."num_paths";
        Route.port as "rdma_ucm_query_route_resp"."port_num";
        QpAttr.address as "ib_uverbs_qp_attr"."ah_attr";
        QpAttr.destination as "ib_uverbs_qp_attr"."dest_qp_num";
        QpAttr.access as "ib_uverbs_qp_attr"."qp_access_flags";
        QpAttr.capabilities as "ib_uverbs_qp_attr"."max_send_wr";
        AddressHandle.sgid_index as "ib_uverbs_ah_attr"."grh.sgid_index";
        AddressHandle.hop_limit as "ib_uverbs_ah_attr"."grh.hop_limit";
        SetOption.name as "rdma_ucm_set_option"."optname";
    );
    macro_rules! named {
        ($($prefix:literal { $($name:ident)* })*) => {$($(
            facts.push((format!("(size_t)({}{})", $prefix, stringify!($name)), command::$name as usize));
        )*)*};
    }
    named!("RDMA_USER_CM_CMD_" { CREATE_ID DESTROY_ID BIND_IP RESOLVE_IP RESOLVE_ROUTE QUERY_ROUTE CONNECT LISTEN ACCEPT REJECT
        DISCONNECT INIT_QP_ATTR GET_EVENT SET_OPTION NOTIFY JOIN_IP_MCAST LEAVE_MCAST MIGRATE_ID BIND RESOLVE_ADDR JOIN_MCAST });
    for (name, value) in [
        ("RDMA_PS_IPOIB", SPACE_IPOIB),
        ("RDMA_PS_TCP", SPACE_TCP),
        ("RDMA_PS_UDP", SPACE_UDP),
        ("RDMA_PS_IB", SPACE_IB),
        ("RDMA_OPTION_ID", LEVEL_ID as u16),
        ("RDMA_OPTION_ID_TOS", OPTION_TOS as u16),
        ("RDMA_OPTION_ID_REUSEADDR", OPTION_REUSEADDR as u16),
        ("RDMA_OPTION_ID_AFONLY", OPTION_AFONLY as u16),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", OPTION_ACK_TIMEOUT as u16),
        ("IBV_EVENT_COMM_EST", COMMUNICATION_ESTABLISHED as u16),
    ] {
        facts.push((format!("(size_t)({name})"), value.into()));
    }
}

fn numbers(facts: &mut Facts) {
    values!(facts,
        WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_SEND WR_SEND_WITH_IMM WR_RDMA_READ WR_ATOMIC_CMP_AND_SWP WR_ATOMIC_FETCH_AND_ADD
        WR_LOCAL_INV WR_BIND_MW WR_SEND_WITH_INV WR_TSO WR_DRIVER1 WR_ATOMIC_WRITE QPT_RC QPT_UC QPT_UD SRQT_BASIC WC_GRH WC_WITH_IMM
        WC_EX_WITH_BYTE_LEN WC_EX_WITH_IMM WC_EX_WITH_QP_NUM WC_EX_WITH_SRC_QP WC_EX_WITH_SLID WC_EX_WITH_SL WC_EX_WITH_DLID_PATH_BITS
        ACCESS_MW_BIND ACCESS_ZERO_BASED ACCESS_ON_DEMAND ACCESS_HUGETLB  ACCESS_OPTIONAL_RANGE
        QP_INIT_ATTR_PD QP_INIT_ATTR_CREATE_FLAGS QP_INIT_ATTR_SEND_OPS_FLAGS SRQ_INIT_ATTR_TYPE SRQ_INIT_ATTR_PD SRQ_MAX_WR SRQ_LIMIT
        CQ_INIT_ATTR_MASK_FLAGS CREATE_CQ_ATTR_SINGLE_THREADED QP_EX_WITH_RDMA_WRITE QP_EX_WITH_RDMA_WRITE_WITH_IMM QP_EX_WITH_SEND
        QP_EX_WITH_SEND_WITH_IMM QP_EX_WITH_RDMA_READ QP_EX_WITH_ATOMIC_CMP_AND_SWP QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        DEVICE_CURR_QP_STATE_MOD DEVICE_SYS_IMAGE_GUID DEVICE_RC_RNR_NAK_GEN ATOMIC_HCA PORT_ACTIVE MTU_4096 PORT_IP_BASED_GIDS
        LINK_LAYER_ETHERNET    EVENT_CQ_ERR  EVENT_QP_REQ_ERR EVENT_QP_ACCESS_ERR
         EVENT_SQ_DRAINED     EVENT_SRQ_LIMIT_REACHED
        EVENT_QP_LAST_WQE_REACHED
    );
    use isthmus_verbs::{Access, AttributeMask, CompletionKind, QpState, SendFlags, Status};
    for (name, value) in [
        ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE.bits()),
        ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE.bits()),
        ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ.bits()),
        ("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC.bits()),
        ("IBV_SEND_FENCE", SendFlags::FENCE.bits()),
        ("IBV_SEND_SIGNALED", SendFlags::SIGNALED.bits()),
        ("IBV_SEND_SOLICITED", SendFlags::SOLICITED.bits()),
        ("IBV_SEND_INLINE", SendFlags::INLINE.bits()),
        ("IBV_QP_STATE", AttributeMask::STATE.bits()),
        ("IBV_QP_AV", AttributeMask::ADDRESS.bits()),
        ("IBV_QP_MIN_RNR_TIMER", AttributeMask::RNR_TIMER.bits()),
        ("IBV_QP_MAX_QP_RD_ATOMIC", AttributeMask::READS_MAX.bits()),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", AttributeMask::READS_SERVED_MAX.bits()),
        ("IBV_QP_DEST_QPN", AttributeMask::DESTINATION.bits()),
        ("IBV_QPS_RTS", QpState::ReadyToSend as u32),
        ("IBV_QPS_ERR", QpState::Error as u32),
        ("IBV_WC_WR_FLUSH_ERR", Status::Flushed as u32),
        ("IBV_WC_LOC_PROT_ERR", Status::LocalProtection as u32),
        ("IBV_WC_REM_INV_REQ_ERR", Status::RemoteInvalidRequest as u32),
        ("IBV_WC_REM_ACCESS_ERR", Status::RemoteAccess as u32),
        ("IBV_WC_REM_OP_ERR", Status::RemoteOperation as u32),
        ("IBV_WC_RETRY_EXC_ERR", Status::RetryExceeded as u32),
        ("IBV_WC_RNR_RETRY_EXC_ERR", Status::RnrRetryExceeded as u32),
        ("IBV_WC_LOC_LEN_ERR", Status::LocalLength as u32),
        ("IBV_WC_LOC_QP_OP_ERR", Status::LocalQpOperation as u32),
        ("IBV_WC_RDMA_WRITE", CompletionKind::Write as u32),
        ("IBV_WC_RDMA_READ", CompletionKind::Read as u32),
        ("IBV_WC_COMP_SWAP", CompletionKind::CompareSwap as u32),
        ("IBV_WC_FETCH_ADD", CompletionKind::FetchAdd as u32),
        ("IBV_WC_RECV", CompletionKind::Receive as u32),
        ("IBV_WC_RECV_RDMA_WITH_IMM", CompletionKind::ReceiveWriteImmediate as u32),
    ] {
        facts.push((name.to_owned(), value as usize));
    }
}

#[test]
fn layout_matches_the_installed_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        eprintln!("skipped: there is no infiniband/verbs.h (libibverbs-dev)");
        return;
    }
    let mut facts = Facts::new();
    [devices, objects, requests, queries, connections, numbers].into_iter().for_each(|ask| ask(&mut facts));
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n",
    );
    facts.iter().for_each(|(question, _)| source += &format!("printf(\"%zu\\n\", (size_t)({question}));\n"));
    source += "return 0; }\n";
    let folder = std::env::temp_dir().join(format!("isthmus-ibverbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let cc = Command::new("cc").arg("-w").arg("-o").arg(&program).arg(&file).output().unwrap();
    let printed = Command::new(&program).output();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
    let theirs: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), facts.len());
    let wrong: Vec<_> = facts.iter().zip(theirs).filter(|((_, ours), theirs)| ours != theirs).collect();
    assert!(wrong.is_empty(), "question, ours, theirs: {wrong:#?}");
}

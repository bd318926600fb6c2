//! Commands to the connection manager, and their results (`rdma/rdma_user_cm.h`, version 4 of the interface).

use super::assert_layout;

/// `struct rdma_ucm_cmd_hdr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) command: u32,
    pub(crate) given: u16,
    pub(crate) wanted: u16,
}

/// The numbers of the commands.
pub(crate) mod command {
    pub(crate) const CREATE_ID: u32 = 0;
    pub(crate) const DESTROY_ID: u32 = 1;
    pub(crate) const BIND_IP: u32 = 2;
    pub(crate) const RESOLVE_IP: u32 = 3;
    pub(crate) const RESOLVE_ROUTE: u32 = 4;
    pub(crate) const QUERY_ROUTE: u32 = 5;
    pub(crate) const CONNECT: u32 = 6;
    pub(crate) const LISTEN: u32 = 7;
    pub(crate) const ACCEPT: u32 = 8;
    pub(crate) const REJECT: u32 = 9;
    pub(crate) const DISCONNECT: u32 = 10;
    pub(crate) const INIT_QP_ATTR: u32 = 11;
    pub(crate) const GET_EVENT: u32 = 12;
    pub(crate) const SET_OPTION: u32 = 14;
    pub(crate) const NOTIFY: u32 = 15;
    pub(crate) const JOIN_IP_MCAST: u32 = 16;
    pub(crate) const LEAVE_MCAST: u32 = 17;
    pub(crate) const MIGRATE_ID: u32 = 18;
    pub(crate) const BIND: u32 = 20;
    pub(crate) const RESOLVE_ADDR: u32 = 21;
    pub(crate) const JOIN_MCAST: u32 = 22;
}

/// `enum rdma_ucm_port_space`
pub(crate) const SPACE_IPOIB: u16 = 0x0002;
pub(crate) const SPACE_TCP: u16 = 0x0106;
pub(crate) const SPACE_UDP: u16 = 0x0111;
pub(crate) const SPACE_IB: u16 = 0x013f;

/// `RDMA_OPTION_ID`, and its options
pub(crate) const LEVEL_ID: u32 = 0;
pub(crate) const OPTION_TOS: u32 = 0;
pub(crate) const OPTION_REUSEADDR: u32 = 1;
pub(crate) const OPTION_AFONLY: u32 = 2;
pub(crate) const OPTION_ACK_TIMEOUT: u32 = 3;

/// `IBV_EVENT_COMM_EST`
pub(crate) const COMMUNICATION_ESTABLISHED: u32 = 4;

/// An address of IPv4 or IPv6, in the space of `struct sockaddr_in6`
pub(crate) type SocketAddress = [u8; 28];

/// `struct rdma_ucm_create_id`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CreateId {
    pub(crate) uid: u64,
    pub(crate) response: u64,
    pub(crate) space: u16,
    pub(crate) qp_type: u8,
    pub(crate) reserved: [u8; 5],
}

/// `struct rdma_ucm_destroy_id`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DestroyId {
    pub(crate) response: u64,
    pub(crate) id: u32,
    pub(crate) reserved: u32,
}

/// `struct rdma_ucm_bind_ip`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BindIp {
    pub(crate) response: u64,
    pub(crate) address: SocketAddress,
    pub(crate) id: u32,
}

/// `struct rdma_ucm_resolve_ip`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ResolveIp {
    pub(crate) source: SocketAddress,
    pub(crate) destination: SocketAddress,
    pub(crate) id: u32,
    pub(crate) timeout_ms: u32,
}

/// `struct rdma_ucm_resolve_route`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ResolveRoute {
    pub(crate) id: u32,
    pub(crate) timeout_ms: u32,
}

/// `struct rdma_ucm_query`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Query {
    pub(crate) response: u64,
    pub(crate) id: u32,
    pub(crate) option: u32,
}

/// `struct ib_user_path_rec`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PathRecord {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid: [u8; 16],
    pub(crate) lids: [u16; 2],
    pub(crate) raw_traffic: u32,
    pub(crate) flow_label: u32,
    pub(crate) reversible: u32,
    pub(crate) mtu: u32,
    pub(crate) pkey: u16,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) numb_path: u8,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// `struct rdma_ucm_query_route_resp`, without the number of the device, which not every version asks for
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Route {
    pub(crate) node_guid: u64,
    pub(crate) paths: [PathRecord; 2],
    pub(crate) source: SocketAddress,
    pub(crate) destination: SocketAddress,
    pub(crate) num_paths: u32,
    pub(crate) port: u8,
    pub(crate) reserved: [u8; 3],
}

/// `struct rdma_ucm_conn_param`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConnectionParameters {
    pub(crate) qp: u32,
    pub(crate) qkey: u32,
    pub(crate) private_data: [u8; 256],
    pub(crate) private_data_len: u8,
    pub(crate) srq: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) valid: u8,
}

/// `struct ib_uverbs_ah_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AddressHandle {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reserved: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port: u8,
    pub(crate) reserved2: u8,
}

/// `struct rdma_ucm_ud_param`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DatagramParameters {
    pub(crate) qp: u32,
    pub(crate) qkey: u32,
    pub(crate) address: AddressHandle,
    pub(crate) private_data: [u8; 256],
    pub(crate) private_data_len: u8,
    pub(crate) reserved: [u8; 7],
}

/// `struct rdma_ucm_connect`, without the options of vendors
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Connect {
    pub(crate) parameters: ConnectionParameters,
    pub(crate) id: u32,
    pub(crate) reserved: u32,
}

/// `struct rdma_ucm_listen`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Listen {
    pub(crate) id: u32,
    pub(crate) backlog: u32,
}

/// `struct rdma_ucm_accept`, without the options of vendors
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Accept {
    pub(crate) uid: u64,
    pub(crate) parameters: ConnectionParameters,
    pub(crate) id: u32,
    pub(crate) reserved: u32,
}

/// `struct rdma_ucm_reject`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Reject {
    pub(crate) id: u32,
    pub(crate) private_data_len: u8,
    pub(crate) reason: u8,
    pub(crate) reserved: [u8; 2],
    pub(crate) private_data: [u8; 256],
}

/// `struct rdma_ucm_init_qp_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InitQpAttr {
    pub(crate) response: u64,
    pub(crate) id: u32,
    pub(crate) state: u32,
}

/// `struct ib_uverbs_qp_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) mask: u32,
    pub(crate) state: u32,
    pub(crate) current_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) destination: u32,
    pub(crate) access: u32,
    pub(crate) address: AddressHandle,
    pub(crate) alternate: AddressHandle,
    pub(crate) capabilities: [u32; 5],
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alternate_port_and_timeout: [u8; 2],
    pub(crate) reserved: [u8; 5],
}

/// `struct rdma_ucm_notify`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Notify {
    pub(crate) id: u32,
    pub(crate) event: u32,
}

/// `struct rdma_ucm_set_option`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SetOption {
    pub(crate) value: u64,
    pub(crate) id: u32,
    pub(crate) level: u32,
    pub(crate) name: u32,
    pub(crate) len: u32,
}

/// `struct rdma_ucm_migrate_id`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MigrateId {
    pub(crate) response: u64,
    pub(crate) id: u32,
    pub(crate) fd: u32,
}

/// `struct rdma_ucm_event_resp`, without the options of vendors. The parameters lie at a multiple of 4.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(crate) struct EventResponse {
    pub(crate) uid: u64,
    pub(crate) id: u32,
    pub(crate) event: u32,
    pub(crate) status: u32,
    pub(crate) parameters: EventParameters,
}

/// The parameters of an event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union EventParameters {
    pub(crate) connection: ConnectionParameters,
    pub(crate) datagrams: DatagramParameters,
}

assert_layout! { CreateId: 24 { uid: 0, response: 8, space: 16, qp_type: 18 } }
assert_layout! { BindIp: 40 { response: 0, address: 8, id: 36 } }
assert_layout! { ResolveIp: 64 { source: 0, destination: 28, id: 56, timeout_ms: 60 } }
assert_layout! { ConnectionParameters: 272 { private_data: 8, private_data_len: 264, valid: 271 } }
assert_layout! { AddressHandle: 32 { flow_label: 16, sgid_index: 20, dlid: 24, port: 30 } }
assert_layout! { DatagramParameters: 304 { address: 8, private_data: 40, private_data_len: 296 } }
assert_layout! { Connect: 280 { id: 272 } }
assert_layout! { Accept: 288 { parameters: 8, id: 280 } }
assert_layout! { Reject: 264 { private_data: 8 } }
assert_layout! { QpAttr: 144 { address: 40, alternate: 72, capabilities: 104, pkey_index: 124, retry_cnt: 135 } }
assert_layout! { SetOption: 24 { id: 8, len: 20 } }
assert_layout! { EventResponse: 324 { id: 8, event: 12, status: 16, parameters: 20 } }
assert_layout! { PathRecord: 64 { mtu: 48, pkey: 52, preference: 63 } }
assert_layout! { Route: 200 { paths: 8, source: 136, destination: 164, num_paths: 192, port: 196 } }

//! `libmyriexpress.so.0`: MX for C programs, with the headers `include/myriexpress.h` and those beside it.
//!
//! ```text
//!   program.c ──► mx_… ──► table ──► endpoint (locked) ──► isthmus_client::Domain ──► channel, daemon
//!                                          │                        ▲
//!                                          └── isthmus_mx::Engine ──┘  matching: one asks, the other decides
//!
//!   library, errors, codes, environment ── initialisation; error handlers; texts; variables
//!   table, endpoint, wait, change_count ── handles, locks, the leader of waiting threads
//!   open, connect, boards, info ────────── endpoints, addresses, names
//!   send, receive, segments, matcher ───── messages
//!   completion, requests, handler ──────── ends of requests; unexpected messages; periods without progress
//!   raw, internals ─────────────────────── calls of tools and middleware
//! ```
//!
//! Each MX endpoint is a domain of its own with one endpoint in it, so the lock of an MX endpoint covers one domain, and its
//! session is the domain's number. Messages between MX endpoints are ordinary messages of the client library, with the match
//! information as their tag.
//!
//! This crate has no signal handler and no constructor. It has a thread only for copied sends, and a function that `exit` calls
//! only for these (`delivery`). It ends the process only as `MX_ERRORS_ARE_FATAL`, and only because programs of MX expect that.
//!
//! The library is linked by `cargo xtask link-abi isthmus-myriexpress --map abi/myriexpress/libmyriexpress.map --out
//! libmyriexpress.so`.

mod boards;
mod change_count;
mod codes;
mod completion;
mod connect;
mod deadlines;
mod delivery;
mod endpoint;
mod environment;
mod errors;
mod handler;
mod info;
mod internals;
mod library;
mod matcher;
mod open;
mod raw;
mod receive;
mod requests;
mod segments;
mod send;
mod table;
mod types;
mod wait;

pub use boards::{mx_board_number_to_nic_id, mx_hostname_to_nic_id, mx_nic_id_to_board_number, mx_nic_id_to_hostname};
pub use codes::{Return, StatusNumber, mx_strerror, mx_strstatus};
pub use completion::{mx_ipeek, mx_peek, mx_test, mx_test_any, mx_wait, mx_wait_any};
pub use connect::{
    mx_connect, mx_decompose_endpoint_addr, mx_decompose_endpoint_addr2, mx_disconnect, mx_get_endpoint_addr_context,
    mx_iconnect, mx_iget, mx_iput, mx_set_endpoint_addr_context,
};
pub use errors::{MX_ERRORS_ARE_FATAL, MX_ERRORS_RETURN, mx_set_error_handler};
pub use handler::{
    mx_disable_progression, mx_progress, mx_reenable_progression, mx_register_unexp_callback, mx_register_unexp_handler,
};
pub use info::mx_get_info;
pub use internals::{mx__get_mapper_state, mx__regcache_clean, mx_open_board};
pub use library::{mx__init_api, mx_finalize};
pub use open::{mx_close_endpoint, mx_get_endpoint_addr, mx_open_endpoint, mx_wakeup};
pub use raw::{
    mx_raw_clear_routes, mx_raw_close_endpoint, mx_raw_handle, mx_raw_line_speed, mx_raw_next_event, mx_raw_num_ports,
    mx_raw_open_endpoint, mx_raw_remove_peer, mx_raw_send, mx_raw_set_hostname, mx_raw_set_map_version,
    mx_raw_set_nic_reply_info, mx_raw_set_peer_name, mx_raw_set_route, mx_raw_set_route_begin, mx_raw_set_route_end,
    mx_raw_set_route_mag,
};
pub use receive::{mx_iprobe, mx_irecv, mx_probe};
pub use requests::{mx_buffered, mx_cancel, mx_context, mx_forget, mx_ibuffered, mx_set_request_timeout};
pub use send::{mx_isend, mx_issend};
pub use types::{
    ContextId, EndpointHandle, ErrorHandler, MapperState, MatchingCallback, MxEndpointAddr, MxStatus, Parameter,
    ParameterValue, RequestHandle, Segment, UnexpectedHandler,
};

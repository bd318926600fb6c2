//! The structures and function types that `myriexpress.h` declares.

use crate::codes::{Return, StatusNumber};
use std::ffi::{c_char, c_int, c_void};

/// `mx_endpoint_t`: a number of the table of open endpoints, never a pointer.
pub type EndpointHandle = usize;

/// `mx_request_t`: the slot of the endpoint, and the engine's identifier of the request. Null means no request.
pub type RequestHandle = usize;

/// `mx_endpoint_addr_t`: the handle of the endpoint that knows the partner, and the engine's identifier of the partner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MxEndpointAddr {
    /// Opaque to programs.
    pub stuff: [u64; 2],
}

/// `mx_segment_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    /// The start of the segment.
    pub segment_ptr: *mut c_void,
    /// The length in bytes.
    pub segment_length: u32,
}

/// `mx_status_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MxStatus {
    /// The result.
    pub code: StatusNumber,
    /// The sender, the destination, or the connected address.
    pub source: MxEndpointAddr,
    /// The match information of the message.
    pub match_info: u64,
    /// The length of the message in bytes.
    pub msg_length: u32,
    /// The number of bytes transferred.
    pub xfer_length: u32,
    /// The context that the program gave to the request.
    pub context: *mut c_void,
}

/// `mx_param_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Parameter {
    /// `mx_param_key_t`.
    pub key: u32,
    /// The value, in the form that `key` selects.
    pub val: ParameterValue,
}

/// The union in `mx_param_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ParameterValue {
    /// `MX_PARAM_ERROR_HANDLER`.
    pub error_handler: Option<ErrorHandler>,
    /// `MX_PARAM_UNEXP_QUEUE_MAX`.
    pub unexp_queue_max: u32,
    /// `MX_PARAM_CONTEXT_ID`.
    pub context_id: ContextId,
}

/// The structure in `mx_param_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ContextId {
    /// The number of bits.
    pub bits: u8,
    /// The position of the lowest bit.
    pub shift: u8,
}

/// `mx_mapper_state_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MapperState {
    /// The board of the query, set by the caller.
    pub board_number: u32,
    /// The Ethernet address of the mapper.
    pub mapper_mac: [u8; 6],
    /// The port of the query, set by the caller.
    pub iport: u16,
    /// The version of the map.
    pub map_version: u32,
    /// The number of hosts in the map.
    pub num_hosts: u32,
    /// Always true.
    pub network_configured: u32,
    /// Always true.
    pub routes_valid: u32,
    /// The level of the mapper.
    pub level: u32,
    /// The flags of the mapper.
    pub flags: u32,
}

/// `mx_error_handler_t`.
pub type ErrorHandler = unsafe extern "C-unwind" fn(message: *mut c_char, code: Return) -> Return;

/// `mx_unexp_handler_t`, which returns `MX_RECV_CONTINUE` or `MX_RECV_FINISHED`.
pub type UnexpectedHandler = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    source: MxEndpointAddr,
    match_info: u64,
    length: u32,
    data: *mut c_void,
) -> u32;

/// `mx_matching_callback_t`.
pub type MatchingCallback = unsafe extern "C-unwind" fn(context: *mut c_void, match_info: u64, length: c_int);

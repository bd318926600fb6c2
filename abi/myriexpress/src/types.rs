//! The structures that `myriexpress.h` declares, and the types of the program's functions.

use crate::codes::{Return, StatusNumber};
use std::ffi::{c_char, c_int, c_void};

/// `mx_endpoint_t`: a number of the table of open endpoints, never a pointer.
pub type EndpointHandle = usize;

/// `mx_request_t`: the place of its endpoint, and the engine's name for the request. Null is none.
pub type RequestHandle = usize;

/// `mx_endpoint_addr_t`: the handle of the endpoint that knows it, and the engine's name for the partner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MxEndpointAddr {
    /// Nothing that a program looks into.
    pub stuff: [u64; 2],
}

/// `mx_segment_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    /// Where it begins.
    pub segment_ptr: *mut c_void,
    /// Bytes.
    pub segment_length: u32,
}

/// `mx_status_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MxStatus {
    /// How it ended.
    pub code: StatusNumber,
    /// The sender, the destination, or the new address.
    pub source: MxEndpointAddr,
    /// Of the message.
    pub match_info: u64,
    /// Bytes of the message.
    pub msg_length: u32,
    /// Bytes that were moved.
    pub xfer_length: u32,
    /// The program's word.
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
    /// How many.
    pub bits: u8,
    /// From which on.
    pub shift: u8,
}

/// `mx_mapper_state_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MapperState {
    /// Asked about.
    pub board_number: u32,
    /// Ethernet address of the mapper.
    pub mapper_mac: [u8; 6],
    /// Asked about.
    pub iport: u16,
    /// Counts maps.
    pub map_version: u32,
    /// Hosts of the map.
    pub num_hosts: u32,
    /// True.
    pub network_configured: u32,
    /// True.
    pub routes_valid: u32,
    /// Of the mapper.
    pub level: u32,
    /// Of the mapper.
    pub flags: u32,
}

/// `mx_error_handler_t`.
pub type ErrorHandler = unsafe extern "C-unwind" fn(message: *mut c_char, code: Return) -> Return;

/// `mx_unexp_handler_t`; answers `MX_RECV_CONTINUE` or `MX_RECV_FINISHED`.
pub type UnexpectedHandler = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    source: MxEndpointAddr,
    match_info: u64,
    length: u32,
    data: *mut c_void,
) -> u32;

/// `mx_matching_callback_t`.
pub type MatchingCallback = unsafe extern "C-unwind" fn(context: *mut c_void, match_info: u64, length: c_int);

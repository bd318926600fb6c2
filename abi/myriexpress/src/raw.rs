//! Raw endpoints, which exchange whole frames of a board. No board of this host supports them, so opening fails, and
//! every other call gets an endpoint that is not open. These calls do not report errors to the error handler.

use crate::codes::Return;
use crate::errors::call_without_handler;
use crate::types::{EndpointHandle, Parameter};
use crate::{boards, internals};
use std::ffi::{c_char, c_int, c_void};

/// Opens the raw endpoint of a board.
///
/// # Safety
///
/// None: nothing behind the pointers is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_open_endpoint(
    board_number: u32,
    parameters: *const Parameter,
    parameters_count: u32,
    _endpoint: *mut EndpointHandle,
) -> Return {
    call_without_handler(|| {
        if parameters.is_null() && parameters_count > 0 {
            return Err(Return::BAD_PARAM_LIST.into());
        }
        boards::board(board_number)?;
        Err(Return::NO_DEV.into())
    })
}

/// Returns the handle of the board.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_handle(_endpoint: EndpointHandle) -> c_int {
    internals::INVALID_HANDLE
}

/// Calls that return the same error. The pointers are not dereferenced.
macro_rules! unsupported_calls {
    ($($(#[$doc:meta])* $name:ident($($argument:ty),*);)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(_: EndpointHandle $(, _: $argument)*) -> Return {
                call_without_handler(|| Err(Return::BAD_ENDPOINT.into()))
            }
        )*
    };
}

unsupported_calls! {
    /// Closes a raw endpoint.
    mx_raw_close_endpoint();
    /// Sends a frame.
    mx_raw_send(u32, *mut c_void, u32, *mut c_void, u32, *mut c_void);
    /// Returns the next event.
    mx_raw_next_event(*mut u32, *mut *mut c_void, *mut c_void, *mut u32, u32, *mut c_int);
    /// Begins a change of routes.
    mx_raw_set_route_begin();
    /// Ends a change of routes.
    mx_raw_set_route_end();
    /// Adds a peer.
    mx_raw_set_route_mag(u64, *mut c_void, u32, u32, u32, u32, u32);
    /// Adds a peer.
    mx_raw_set_route(u64, *mut c_void, u32, u32, u32, u32);
    /// Does nothing.
    mx_raw_clear_routes(u64, u32);
    /// Removes a peer.
    mx_raw_remove_peer(u64);
    /// Sets the version of the map.
    mx_raw_set_map_version(u32, u64, u32, u32, u32);
    /// Returns the number of ports of the board.
    mx_raw_num_ports(*mut u32);
    /// Returns the speed of the board.
    mx_raw_line_speed(*mut u32);
    /// Names the board.
    mx_raw_set_hostname(*mut c_char);
    /// Names a peer.
    mx_raw_set_peer_name(u64, *mut c_char);
    /// Does nothing.
    mx_raw_set_nic_reply_info(*mut c_void, u32);
}

//! The numbers of `mx_return_t` and `mx_status_code_t`, with a text for each.

use isthmus_mx::StatusCode;
use std::ffi::{CStr, c_char};

/// `mx_return_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Return(pub u32);

/// `mx_status_code_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct StatusNumber(pub u32);

macro_rules! returns {
    ($($number:literal $name:ident $text:literal)*) => {
        impl Return {
            $(#[doc = concat!("`MX_", stringify!($name), "`.")] pub const $name: Self = Self($number);)*
        }

        /// The texts, by number.
        const RETURNS: &[&CStr] = &[$($text),*];
    };
}

returns! {
    0 SUCCESS c"success"
    1 BAD_BAD_BAD c"the library has found itself in a state that cannot be"
    2 FAILURE c"failure"
    3 ALREADY_INITIALIZED c"the library is initialised already"
    4 NOT_INITIALIZED c"the library is not initialised"
    5 NO_DEV c"there is no board"
    6 NO_DRIVER c"no daemon answers"
    7 NO_PERM c"the daemon, or the way to it, does not permit it"
    8 BOARD_UNKNOWN c"there is no such board"
    9 BAD_ENDPOINT c"this is not an open endpoint, or not one of its addresses"
    10 BAD_SEG_LIST c"the list of segments is missing"
    11 BAD_SEG_MEM c"the memory of a segment is missing"
    12 BAD_SEG_CNT c"too many segments"
    13 BAD_REQUEST c"this is not a request of the endpoint, or not of the kind that is needed"
    14 BAD_MATCH_MASK c"the match information has bits outside of the mask"
    15 NO_RESOURCES c"out of memory, descriptors or another resource"
    16 BAD_ADDR_LIST c"the list of addresses is missing"
    17 BAD_ADDR_COUNT c"too many addresses"
    18 BAD_ROOT c"there is no such root"
    19 NOT_COMPLETED c"not completed"
    20 BUSY c"the endpoint is in use, or all of them are"
    21 BAD_INFO_KEY c"there is no such information"
    22 BAD_INFO_VAL c"the place for the information is missing"
    23 BAD_NIC c"this is not the address of a board"
    24 BAD_PARAM_LIST c"the list of parameters is missing"
    25 BAD_PARAM_NAME c"there is no such parameter"
    26 BAD_PARAM_VAL c"the value of a parameter cannot be"
    27 BAD_HOSTNAME_ARGS c"the host name, or the place for it, is missing"
    28 HOST_NOT_FOUND c"no peer has this name or address"
    29 REQUEST_PENDING c"the request is pending"
    30 TIMEOUT c"no answer in time"
    31 NO_MATCH c"nothing matches"
    32 BAD_ENDPOINT_ID c"the peer has no endpoint of this number"
    33 CONNECTION_FAILED c"the peer's endpoint is not open"
    34 BAD_CONNECTION_KEY c"the peer's endpoint wants another key"
    35 BAD_INFO_LENGTH c"the place for the information is too small"
    36 NIC_NOT_FOUND c"no peer has this address"
    37 BAD_KERNEL_VERSION c"the daemon is of another version"
    38 BAD_LIB_VERSION c"the program wants another version of the library"
    39 NIC_DEAD c"the board is dead"
    40 CANCEL_NOT_SUPPORTED c"a request of this kind cannot be cancelled"
    41 CLOSE_IN_HANDLER c"the handler of unexpected messages cannot close the endpoint"
    42 BAD_MATCHING_FOR_CONTEXT_ID_MASK c"the mask does not cover the context id"
    43 NOT_SUPPORTED_WITH_CONTEXT_ID c"not supported with context ids"
}

/// The offset of status codes passed to the error handler, which makes them distinct from all `mx_return_t`.
const STATUS_BASE: u32 = 80;

impl Return {
    /// Returns the code that the error handler gets for a request with this status.
    pub(crate) fn of_status(code: StatusCode) -> Self {
        Self(STATUS_BASE + code.number())
    }

    /// Returns the text of any number.
    pub fn text(self) -> &'static CStr {
        let status = self.0.checked_sub(STATUS_BASE).and_then(|number| STATUSES.get(number as usize));
        RETURNS.get(self.0 as usize).or(status).copied().unwrap_or(c"there is no such code")
    }
}

/// The texts of status codes, by number.
const STATUSES: [&CStr; StatusCode::ALL.len()] = [
    c"success",
    c"pending",
    c"buffered",
    c"rejected",
    c"no answer in time",
    c"the message was truncated",
    c"cancelled",
    c"there is no such endpoint",
    c"the endpoint is closed",
    c"the endpoint cannot be reached",
    c"the endpoint has been opened anew",
    c"the endpoint wants another key",
    c"the peer has no endpoint of this number",
    c"the sender's memory is not there",
    c"the transfer was given up",
    c"the receiver's queue is full",
    c"out of resources",
];

/// Returns the text of any return code. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn mx_strerror(code: Return) -> *const c_char {
    code.text().as_ptr()
}

/// Returns the text of any status code. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn mx_strstatus(code: StatusNumber) -> *const c_char {
    STATUSES.get(code.0 as usize).copied().unwrap_or(c"there is no such status").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_text() {
        assert_eq!(RETURNS.len(), 44);
        assert_eq!(Return::NOT_SUPPORTED_WITH_CONTEXT_ID.text(), RETURNS[43]);
        assert_eq!(Return::of_status(StatusCode::Truncated).text(), c"the message was truncated");
        for number in (0..200).chain([u32::MAX]) {
            assert!(!Return(number).text().is_empty());
            assert!(!mx_strstatus(StatusNumber(number)).is_null());
        }
    }
}

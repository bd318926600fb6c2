//! Functions that middleware calls below the endpoints: board handles, the mapper, the registration cache.

use crate::boards;
use crate::codes::Return;
use crate::errors::call_without_handler;
use crate::types::MapperState;
use std::ffi::{c_int, c_void};

/// `MX__INVALID_HANDLE`.
pub(crate) const INVALID_HANDLE: c_int = -1;

/// The mapper's Ethernet address. There is no mapper, because the daemon knows the peers. Programs consider boards with
/// the same mapper connected, so the address is the same everywhere.
const MAPPER: [u8; 6] = [0x02, b'i', b's', b't', b'h', b'm'];

/// Returns a handle for [`mx__get_mapper_state`]: the board's number.
///
/// # Safety
///
/// `handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_open_board(board_number: c_int, handle: *mut c_int) -> Return {
    call_without_handler(|| {
        let number = u32::try_from(board_number).map_err(|_| Return::BOARD_UNKNOWN)?;
        boards::board(number)?;
        // SAFETY: null or writable by the caller's promise.
        unsafe { boards::put(handle, board_number) }
    })
}

/// Returns the state of the network for the board that `state` names.
///
/// # Safety
///
/// `state` is null, or can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx__get_mapper_state(handle: c_int, state: *mut MapperState) -> Return {
    call_without_handler(|| {
        // SAFETY: null, or ours to read and write by the caller's promise.
        let state = unsafe { state.as_mut() }.ok_or(Return::BAD_INFO_VAL)?;
        let report = boards::report()?;
        let is_known = |number| report.boards.iter().any(|board| board.number == number);
        if !u32::try_from(handle).is_ok_and(is_known) || !is_known(state.board_number) {
            return Err(Return::BOARD_UNKNOWN.into());
        }
        let MapperState { board_number, iport, .. } = *state;
        *state = MapperState {
            board_number,
            iport,
            mapper_mac: MAPPER,
            map_version: 1,
            num_hosts: report.peers.len().try_into().unwrap_or(u32::MAX),
            network_configured: 1,
            routes_valid: 1,
            ..MapperState::default()
        };
        Ok(())
    })
}

/// Does nothing: at each use, the cache asks the kernel whether the memory is unchanged. Programs call this inside
/// `free`, so it takes no lock and allocates nothing.
#[unsafe(no_mangle)]
pub extern "C" fn mx__regcache_clean(_start: *mut c_void, _len: usize) -> c_int {
    0
}

//! Boards and their names, as the daemon reports them.
//!
//! No report is kept between calls, because programs ask rarely, and another daemon may run by the next call.

use crate::codes::Return;
use crate::errors::{Failure, call};
use isthmus_client::{Domain, MxBoard, MxBoards, Options, QueryClient, Reason};
use std::ffi::{CStr, c_char};
use std::time::Duration;

/// `MX_MAX_HOSTNAME_LEN`.
const HOSTNAME_LEN_MAX: usize = 80;

/// Returns an error if this host has no board.
pub(crate) fn check() -> Result<(), Failure> {
    if report()?.boards.is_empty() { Err(Return::NO_DEV.into()) } else { Ok(()) }
}

/// Returns the daemon's report of all boards and peers.
pub(crate) fn report() -> Result<MxBoards, Failure> {
    let options = options()?;
    match QueryClient::connect(&options).and_then(|mut inquirer| inquirer.mx()) {
        // Attaching may start a daemon.
        Err(refusal) if refusal.reason == Reason::DaemonUnreachable && !options.no_autostart => {
            let mut domain = Domain::attach_with(&options)?;
            let report = domain.mx()?;
            domain.detach(Duration::ZERO);
            Ok(report)
        }
        answer => Ok(answer?),
    }
}

/// Returns the options of the environment, without the domain name, which is for the program's endpoints.
fn options() -> Result<Options, Failure> {
    let options = Options::from_environment().map_err(isthmus_client::AttachError::from)?;
    Ok(Options { name: None, ..options })
}

/// Returns the board with a number.
pub(crate) fn board(number: u32) -> Result<MxBoard, Failure> {
    let boards = report()?.boards.into_iter();
    boards.into_iter().find(|board| board.number == number).ok_or_else(|| Return::BOARD_UNKNOWN.into())
}

/// Returns the address of the board with this name: `host:number`, or a host for its first board.
///
/// # Safety
///
/// `name` is null or ends with a zero byte. `nic_id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_hostname_to_nic_id(name: *const c_char, nic_id: *mut u64) -> Return {
    call("mx_hostname_to_nic_id", 0, || {
        if name.is_null() || nic_id.is_null() {
            return Err(Return::BAD_HOSTNAME_ARGS.into());
        }
        // SAFETY: not null, so a string by the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let first = format!("{name}:0");
        let peers = report()?.peers;
        let called = |wanted: &str| peers.iter().find(|peer| peer.name == wanted);
        let peer = called(&name).or_else(|| called(&first)).ok_or(Return::HOST_NOT_FOUND)?;
        // SAFETY: not null, so writable by the caller's promise.
        unsafe { nic_id.write(peer.nic) };
        Ok(())
    })
}

/// Returns the address of a board of this host.
///
/// # Safety
///
/// `nic_id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_board_number_to_nic_id(board_number: u32, nic_id: *mut u64) -> Return {
    call("mx_board_number_to_nic_id", 0, || {
        let board = board(board_number)?;
        // SAFETY: null or writable by the caller's promise.
        unsafe { put(nic_id, board.nic) }
    })
}

/// Returns the number of a board of this host.
///
/// # Safety
///
/// `board_number` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_nic_id_to_board_number(nic_id: u64, board_number: *mut u32) -> Return {
    call("mx_nic_id_to_board_number", 0, || {
        let boards = report()?.boards;
        let board = boards.iter().find(|board| board.nic == nic_id).ok_or(Return::BOARD_UNKNOWN)?;
        // SAFETY: null or writable by the caller's promise.
        unsafe { put(board_number, board.number) }
    })
}

/// Returns the name of a board.
///
/// # Safety
///
/// `name` is null or has room for 80 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_nic_id_to_hostname(nic_id: u64, name: *mut c_char) -> Return {
    call("mx_nic_id_to_hostname", 0, || {
        if name.is_null() {
            return Err(Return::BAD_HOSTNAME_ARGS.into());
        }
        let peers = report()?.peers;
        let peer = peers.iter().find(|peer| peer.nic == nic_id).ok_or(Return::HOST_NOT_FOUND)?;
        let len = peer.name.len().min(HOSTNAME_LEN_MAX - 1);
        // SAFETY: the caller has room for 80 bytes, and `len` and the zero byte are at most 80.
        unsafe {
            std::ptr::copy_nonoverlapping(peer.name.as_ptr().cast(), name, len);
            name.add(len).write(0);
        }
        Ok(())
    })
}

/// Writes a result, unless `place` is null.
///
/// # Safety
///
/// `place` is null or writable.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if !place.is_null() {
        // SAFETY: not null, so writable as promised.
        unsafe { place.write(value) };
    }
    Ok(())
}

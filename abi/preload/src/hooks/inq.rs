//! `TCP_INQ`: a control message with the number of bytes that are left to read. Each message has it once the program has set the option.

use core::ffi::c_int;
use core::mem::size_of;
use core::sync::atomic::Ordering;

use libc::{cmsghdr, msghdr};

use crate::connection::{Connection, flags};
use crate::{copy, kernel};

/// The bytes of the control message.
const CONTROL_LEN: usize = size_of::<cmsghdr>() + size_of::<c_int>();

impl Connection {
    /// Notes whether the program has set the option.
    pub(crate) fn note_inq(&self, fd: c_int) {
        let option = kernel::socket_option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_INQ);
        self.says_what_is_left.store(option == Some(1), Ordering::Relaxed);
    }

    /// The bytes that are left to read, as the kernel says it: with 1 for the end of the peer's bytes, so that the program reads on.
    fn left(&self, fd: c_int) -> c_int {
        let Some(stream) = self.stream() else { return 0 };
        let fd = self.kernel_fd(fd);
        let bytes = kernel::unread_bytes(fd) as c_int + self.data_len(stream) as c_int;
        let is_end = !self.has_flag(flags::SHUT_READ) && kernel::events_now(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
        bytes + c_int::from(is_end)
    }
}

/// Writes the control bytes of a message that was received from a stream.
///
/// # Safety
///
/// `message` has as many control bytes as it says.
pub(super) unsafe fn put(connection: &Connection, fd: c_int, message: *mut msghdr) {
    // SAFETY: the caller's contract, or the guards catch a fault.
    unsafe {
        let Ok(mut header) = copy::read(message) else { return };
        let room = if header.msg_control.is_null() { 0 } else { header.msg_controllen };
        header.msg_controllen = 0;
        if connection.says_what_is_left.load(Ordering::Relaxed) {
            if room < CONTROL_LEN {
                header.msg_flags |= libc::MSG_CTRUNC;
            }
            if room >= size_of::<cmsghdr>() {
                let mut bytes = [0u8; CONTROL_LEN];
                let mut told: cmsghdr = core::mem::zeroed();
                (told.cmsg_len, told.cmsg_level, told.cmsg_type) =
                    (room.min(CONTROL_LEN), libc::IPPROTO_TCP, libc::TCP_INQ);
                bytes.as_mut_ptr().cast::<cmsghdr>().write_unaligned(told);
                bytes[size_of::<cmsghdr>()..].copy_from_slice(&connection.left(fd).to_ne_bytes());
                let _ = copy::write_all(header.msg_control.cast::<u8>(), &bytes[..room.min(CONTROL_LEN)]);
                // The kernel leaves the space of a message, or what there was of it.
                header.msg_controllen = room.min(libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize);
            }
        }
        let _ = copy::write(message, header);
    }
}

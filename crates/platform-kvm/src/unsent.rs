//! The number of bytes that the other end of a socket has not read yet.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl};

/// The number of the request (`SIOCOUTQ`, which the kernel's headers define as `TIOCOUTQ`).
const OUTQ: u32 = 0x5411;

/// Returns the number of sent bytes that were not read yet, including the kernel's overhead.
pub(crate) fn bytes(socket: impl AsFd) -> Result<i32, Errno> {
    // SAFETY: the kernel's request of this number writes one C integer, which is what `Getter` of an i32 has room for.
    unsafe { ioctl(socket, Getter::<OUTQ, i32>::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn counts_bytes_until_they_are_read() {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(bytes(&ours), Ok(0));
        rustix::io::write(&ours, &[1; 8]).unwrap();
        assert!(bytes(&ours).unwrap() > 0);
        rustix::io::read(&theirs, &mut [0; 8]).unwrap();
        assert_eq!(bytes(&ours), Ok(0));
    }
}

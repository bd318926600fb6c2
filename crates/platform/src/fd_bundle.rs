//! Descriptors that belong together, kept as one: in a packet that is never taken from its socket.
//!
//! ```text
//!   pack ──► socket pair, a packet with label and descriptors in its queue ──► somebody keeps both ends ──► peek, peek, …
//! ```
//!
//! The packet is only peeked at and stays in the queue. A process that peeks may therefore die at any time, and the next one finds the packet
//! complete. The descriptors in it are closed when the last end is closed.

use crate::PlatformError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::mem::MaybeUninit;

/// Maximum number of descriptors in a bundle: what the kernel allows in one packet.
pub const BUNDLE_FDS_MAX: usize = 253;

/// Maximum number of bytes of a label.
pub const LABEL_BYTES_MAX: usize = 256;

/// The content of a bundle.
#[derive(Debug)]
pub struct FdBundle {
    /// The label it was packed with.
    pub label: Vec<u8>,
    /// The descriptors, in the order in which they were packed.
    pub fds: Vec<OwnedFd>,
}

fn refused(operation: &'static str) -> impl Fn(Errno) -> PlatformError {
    move |source| PlatformError::Refused { operation, source }
}

/// Packs copies of descriptors. Both ends have to be kept, because closing one signals a hang-up to a process that watches the other.
pub fn pack(label: &[u8], fds: &[BorrowedFd<'_>]) -> Result<[OwnedFd; 2], PlatformError> {
    assert!(fds.len() <= BUNDLE_FDS_MAX && (1..=LABEL_BYTES_MAX).contains(&label.len())); // Ours.
    let packing = refused("packing descriptors");
    let (ours, theirs) = crate::seqpacket::pair().map_err(&packing)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BUNDLE_FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)), "there is room for as many");
    rustix::net::sendmsg(&ours, &[IoSlice::new(label)], &mut ancillary, SendFlags::NOSIGNAL).map_err(packing)?;
    Ok([theirs, ours])
}

/// Reads a bundle through one of its ends, without taking it. Returns None if nothing is queued at this end.
pub fn peek(end: impl AsFd) -> Result<Option<FdBundle>, PlatformError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BUNDLE_FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut label = vec![0; LABEL_BYTES_MAX];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let looking = refused("looking at descriptors that were kept");
    let message = match rustix::net::recvmsg(end, &mut [IoSliceMut::new(&mut label)], &mut ancillary, flags) {
        Err(Errno::AGAIN) => return Ok(None),
        other => other.map_err(&looking)?,
    };
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            fds.extend(came);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(looking(Errno::MSGSIZE));
    }
    label.truncate(message.bytes);
    Ok((message.bytes > 0).then_some(FdBundle { label, fds }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;
    use isthmus_layout::RegionSize;

    #[test]
    fn peek_returns_the_whole_bundle_each_time() {
        let sizes = (1..=BUNDLE_FDS_MAX as u64).map(|pages| RegionSize(pages * 4096));
        let memories: Vec<OwnedFd> = sizes.map(|size| local::memory(size).unwrap()).collect();
        let fds: Vec<_> = memories.iter().map(AsFd::as_fd).collect();
        let [end, other] = pack(b"label", &fds).unwrap();
        drop(fds);
        drop(memories);
        for _ in 0..3 {
            let FdBundle { label, fds } = peek(&end).unwrap().unwrap();
            assert_eq!((&label[..], fds.len()), (&b"label"[..], BUNDLE_FDS_MAX));
            for (number, fd) in fds.iter().enumerate() {
                assert_eq!(rustix::fs::fstat(fd).unwrap().st_size, 4096 * (number as i64 + 1));
            }
        }
        assert!(peek(&other).unwrap().is_none());
        // Also where its packer has died in between.
        drop(other);
        assert_eq!(peek(&end).unwrap().unwrap().fds.len(), BUNDLE_FDS_MAX);
    }

    #[test]
    fn peek_refuses_other_packets() {
        let memory = local::memory(RegionSize(4096)).unwrap();
        assert!(peek(&memory).is_err());
        let (ours, theirs) = crate::seqpacket::pair().unwrap();
        drop(ours);
        assert!(peek(&theirs).unwrap().is_none());
    }
}

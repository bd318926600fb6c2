//! Memory of the program: the source or destination of a payload.

use crate::abi::requests::IoVec;
use crate::errno::Errno;
use isthmus_client::Buffer;
use std::ffi::c_void;

/// The maximum number of iovecs in one operation.
pub(crate) const IOV_LIMIT: usize = 16;

/// One iovec, or several.
#[derive(Debug, Clone)]
pub(crate) enum IoVecs {
    One { start: *mut u8, len: usize },
    Many(Box<[IoVec]>),
}

// SAFETY: the program lent the memory for the time of an operation, whichever thread works on it then; every use of it is
// under the lock of its domain.
unsafe impl Send for IoVecs {}

impl IoVecs {
    #[inline]
    pub(crate) fn one(start: *const c_void, len: usize) -> Self {
        Self::One { start: start.cast_mut().cast(), len }
    }

    /// # Safety
    ///
    /// `list` is null, or `count` descriptions can be read there.
    pub(crate) unsafe fn read(list: *const IoVec, count: usize) -> Result<Self, Errno> {
        if count == 0 || list.is_null() {
            return if count == 0 { Ok(Self::one(std::ptr::null(), 0)) } else { Err(Errno::INVAL) };
        }
        if count > IOV_LIMIT {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, so readable as promised.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        match list {
            [iovec] => Ok(Self::one(iovec.base, iovec.len)),
            list => Ok(Self::Many(list.into())),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One { len, .. } => *len,
            Self::Many(list) => list.iter().map(|iovec| iovec.len).sum(),
        }
    }

    /// Returns the start of the first iovec.
    pub(crate) fn start(&self) -> *mut c_void {
        match self {
            Self::One { start, .. } => start.cast(),
            Self::Many(list) => list.first().map_or(std::ptr::null_mut(), |iovec| iovec.base),
        }
    }

    /// Copies all bytes into `into`, which has the same length.
    ///
    /// # Safety
    ///
    /// The program has lent the memory for reading.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, into: &mut [u8]) {
        let into = &mut into[..self.len()];
        // SAFETY: readable as promised, and `into` is ours and as long.
        unsafe { self.copy_to_place(into.as_mut_ptr()) }
    }

    /// Copies the bytes to memory that other processes may change meanwhile.
    ///
    /// # Safety
    ///
    /// The program has lent the memory for reading; as many bytes may be written at `place`.
    #[inline]
    pub(crate) unsafe fn copy_to_place(&self, mut place: *mut u8) {
        match self {
            Self::One { len: 0, .. } => {}
            // SAFETY: as promised.
            Self::One { start, len } => unsafe { std::ptr::copy(*start, place, *len) },
            Self::Many(list) => {
                for iovec in list.iter().filter(|iovec| iovec.len > 0) {
                    // SAFETY: as above, for each iovec.
                    unsafe { std::ptr::copy(iovec.base.cast::<u8>(), place, iovec.len) };
                    place = place.wrapping_add(iovec.len);
                }
            }
        }
    }

    /// Fills all bytes from memory that other processes may change meanwhile.
    ///
    /// # Safety
    ///
    /// The program has lent the memory for writing; as many bytes may be read at `place`.
    #[inline]
    pub(crate) unsafe fn copy_from_place(&self, mut place: *const u8) {
        match self {
            Self::One { len: 0, .. } => {}
            // SAFETY: as promised.
            Self::One { start, len } => unsafe { std::ptr::copy(place, *start, *len) },
            Self::Many(list) => {
                for iovec in list.iter().filter(|iovec| iovec.len > 0) {
                    // SAFETY: as above, for each iovec.
                    unsafe { std::ptr::copy(place, iovec.base.cast::<u8>(), iovec.len) };
                    place = place.wrapping_add(iovec.len);
                }
            }
        }
    }

    /// Copies `bytes` into the iovecs, as far as they fit. Returns the number of bytes copied.
    ///
    /// # Safety
    ///
    /// The program has lent the memory for writing.
    #[inline]
    pub(crate) unsafe fn copy_from(&self, bytes: &[u8]) -> usize {
        match self {
            Self::One { start, len } => {
                let len = bytes.len().min(*len);
                if len > 0 {
                    // SAFETY: `len` bytes are writable as promised; a program that sends to itself may overlap with them.
                    unsafe { std::ptr::copy(bytes.as_ptr(), *start, len) };
                }
                len
            }
            Self::Many(list) => {
                let mut rest = bytes;
                for iovec in list {
                    let (now, later) = rest.split_at(rest.len().min(iovec.len));
                    if !now.is_empty() {
                        // SAFETY: as above, for each iovec.
                        unsafe { std::ptr::copy(now.as_ptr(), iovec.base.cast(), now.len()) };
                    }
                    rest = later;
                }
                bytes.len() - rest.len()
            }
        }
    }

    /// Returns a copy of the bytes.
    ///
    /// # Safety
    ///
    /// The program has lent the memory for reading.
    pub(crate) unsafe fn gather(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // SAFETY: passed on.
        unsafe { self.copy_to(&mut bytes) };
        bytes
    }

    /// Returns a buffer to send from: a copy if the send is injected.
    ///
    /// # Safety
    ///
    /// The program lends the memory for reading until the operation is over; if it is injected, until this returns.
    pub(crate) unsafe fn to_send(&self, injected: bool) -> Buffer {
        if injected {
            // SAFETY: passed on.
            unsafe { self.gather() }.into()
        } else {
            // SAFETY: passed on.
            unsafe { self.as_buffer(false) }
        }
    }

    /// Returns a buffer for the client library to read or fill: the memory itself if it is one iovec, else a buffer of ours with a copy of
    /// the bytes.
    ///
    /// # Safety
    ///
    /// The program has lent the memory, for reading, or for writing if it is to be filled, until the operation is over.
    #[inline]
    pub(crate) unsafe fn as_buffer(&self, fill: bool) -> Buffer {
        match self {
            // SAFETY: as promised.
            Self::One { start, len } => unsafe { Buffer::from_raw_parts(*start, *len) },
            Self::Many(_) if fill => vec![0; self.len()].into(),
            // SAFETY: passed on.
            Self::Many(_) => unsafe { self.gather() }.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_fill_iovecs_in_order() {
        let (mut a, mut b) = ([0_u8; 3], [0_u8; 4]);
        let list = [
            IoVec { base: a.as_mut_ptr().cast(), len: 3 },
            IoVec { base: std::ptr::null_mut(), len: 0 },
            IoVec { base: b.as_mut_ptr().cast(), len: 4 },
        ];
        // SAFETY: the list is there, and so is the memory it names, which no other code uses meanwhile.
        let (copied, gathered) = unsafe {
            let iovecs = IoVecs::read(list.as_ptr(), 3).expect("three are not too many");
            (iovecs.copy_from(b"abcdef"), iovecs.gather())
        };
        assert_eq!((copied, gathered.as_slice(), &a, &b), (6, &b"abcdef\0"[..], b"abc", b"def\0"));
    }

    #[test]
    fn rejects_too_many_iovecs() {
        let list = [IoVec { base: std::ptr::null_mut(), len: 0 }; IOV_LIMIT + 1];
        // SAFETY: the list is there.
        assert_eq!(unsafe { IoVecs::read(list.as_ptr(), list.len()) }.err(), Some(Errno::INVAL));
        // SAFETY: null with a count is one of the promised cases.
        assert_eq!(unsafe { IoVecs::read(std::ptr::null(), 2) }.err(), Some(Errno::INVAL));
    }
}

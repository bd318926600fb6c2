//! Buffers of the program, lent to the library for the duration of a send or a receive.

use std::fmt;

/// Bytes of the program: a vector that is passed in and returned, or memory that a C caller promised not to touch.
pub struct Buffer {
    start: *mut u8,
    len: usize,
    storage: Storage,
}

enum Storage {
    /// The bytes of a vector with this capacity.
    Vector(usize),
    /// Memory of the caller, readable for as long as the caller promised.
    Borrowed { writable: bool },
}

// SAFETY: a vector's bytes may move between threads; borrowed memory may too, by the promise made in `from_raw_parts`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Wraps memory of a caller that cannot give it away.
    ///
    /// # Safety
    ///
    /// Until this buffer is dropped, the `len` bytes at `start` are readable and nothing else writes them. If the buffer is used
    /// for receiving, they are writable and nothing else reads them. They may move between threads.
    pub unsafe fn from_raw_parts(start: *mut u8, len: usize) -> Self {
        let start = if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { start };
        Self { start, len, storage: Storage::Borrowed { writable: true } }
    }

    /// Lends bytes to `with`, which returns the buffer together with its result. No part of the buffer can be kept.
    ///
    /// A buffer that is not returned ends the process, because the bytes may still be written through it.
    pub fn with_borrowed<R>(bytes: &mut [u8], with: impl FnOnce(Self) -> (Self, R)) -> R {
        Self::with_raw_parts(bytes.as_mut_ptr(), bytes.len(), true, with)
    }

    /// Lends bytes for reading only; otherwise like [`Self::with_borrowed`].
    pub fn with_borrowed_shared<R>(bytes: &[u8], with: impl FnOnce(Self) -> (Self, R)) -> R {
        Self::with_raw_parts(bytes.as_ptr().cast_mut(), bytes.len(), false, with)
    }

    fn with_raw_parts<R>(start: *mut u8, len: usize, writable: bool, with: impl FnOnce(Self) -> (Self, R)) -> R {
        let lost = AbortOnDrop;
        // The borrow of our caller lasts until this function returns. A buffer cannot be copied, so once this one is back,
        // no other one exists.
        let (back, answer) = with(Self { start, len, storage: Storage::Borrowed { writable } });
        assert!(back.start == start && back.len == len, "another buffer came back");
        std::mem::forget(lost);
        answer
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` and `len` are those of a vector we own, or were promised readable and unwritten in `from_raw_parts`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(
            !matches!(self.storage, Storage::Borrowed { writable: false }),
            "the bytes were borrowed for reading only"
        );
        // SAFETY: as above; `from_raw_parts` promised that a buffer for receiving is writable and ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Makes the buffer independent of the caller's memory: copies borrowed bytes, after which the caller may use the memory again.
    pub fn make_owned(&mut self) {
        if matches!(self.storage, Storage::Borrowed { .. }) {
            *self = Self::from(self.as_slice().to_vec());
        }
    }

    /// Finds the region of this buffer in `cache`, or migrates its whole pages if the cache decides to.
    pub fn migrate(
        &self,
        cache: &crate::regcache::RegistrationCache,
        onto: crate::regcache::MigrationTarget,
    ) -> crate::regcache::Prepared {
        // SAFETY: the bytes are a vector's that we own, or promised unwritten in `from_raw_parts`, for as long as the range lives: it
        // does not leave this function. A use that is kept longer only keeps the region from being evicted.
        let range = unsafe { crate::regcache::UserRange::new(self.start, self.len) };
        cache.prepare_onto(&range, onto)
    }

    /// Returns the vector that the buffer was made from; None for borrowed memory.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        let this = std::mem::ManuallyDrop::new(self);
        match this.storage {
            // SAFETY: these are the parts of the vector taken apart in `from`; `this` is never dropped, so nothing else uses them.
            Storage::Vector(capacity) => Some(unsafe { Vec::from_raw_parts(this.start, this.len, capacity) }),
            Storage::Borrowed { .. } => None,
        }
    }
}

/// Ends the process if a borrow would end while the bytes are still in use.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        Self { start: bytes.as_mut_ptr(), len: bytes.len(), storage: Storage::Vector(bytes.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Storage::Vector(capacity) = self.storage {
            // SAFETY: as in `into_vec`; this is the only drop.
            drop(unsafe { Vec::from_raw_parts(self.start, self.len, capacity) });
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_returns_its_vector_unchanged() {
        let mut buffer = Buffer::from(Vec::with_capacity(100));
        assert!(buffer.is_empty());
        buffer = Buffer::from(vec![1, 2, 3]);
        buffer.as_mut_slice()[1] = 9;
        assert_eq!(buffer.into_vec(), Some(vec![1, 9, 3]));
    }

    #[test]
    fn borrowed_memory_is_not_freed() {
        let mut bytes = [1, 2, 3];
        // SAFETY: `bytes` is not touched until the buffer is gone.
        let buffer = unsafe { Buffer::from_raw_parts(bytes.as_mut_ptr(), 3) };
        assert_eq!(buffer.as_slice(), [1, 2, 3]);
        assert!(buffer.into_vec().is_none());
        // SAFETY: nothing to promise for no bytes.
        assert!(unsafe { Buffer::from_raw_parts(std::ptr::null_mut(), 0) }.as_slice().is_empty());
    }

    #[test]
    fn owned_copies_outlive_borrowed_memory() {
        let mut bytes = [1, 2, 3];
        // SAFETY: `bytes` is not touched while they are lent, which ends with `make_owned`.
        let mut buffer = unsafe { Buffer::from_raw_parts(bytes.as_mut_ptr(), 3) };
        buffer.make_owned();
        bytes = [9; 3];
        assert_eq!((buffer.as_slice(), bytes), (&[1, 2, 3][..], [9; 3]));
        let start = buffer.as_slice().as_ptr();
        buffer.make_owned();
        assert_eq!(buffer.as_slice().as_ptr(), start, "what is ours stays where it is");
    }

    #[test]
    fn borrowed_bytes_are_written_while_they_are_lent() {
        let mut bytes = [0; 4];
        let answer = Buffer::with_borrowed(&mut bytes, |mut buffer| {
            buffer.as_mut_slice()[3] = 7;
            (buffer, "done")
        });
        assert_eq!((bytes, answer), ([0, 0, 0, 7], "done"));
        Buffer::with_borrowed_shared(&bytes, |buffer| {
            assert_eq!(buffer.as_slice(), [0, 0, 0, 7]);
            (buffer, ())
        });
    }
}

//! Segments: the program memory of a message.

use crate::codes::Return;
use crate::errors::Failure;
use crate::matcher::Receive;
use crate::types::Segment;

/// `MX_MAX_SEGMENTS`.
const SEGMENTS_MAX: u32 = 256;

/// The checked segments of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SegmentList<'a> {
    /// No segment, or one.
    One { start: *mut u8, len: u32 },
    /// Several segments, and their total length.
    Many { segments: &'a [Segment], len: u32 },
}

impl<'a> SegmentList<'a> {
    const EMPTY: Self = Self::One { start: std::ptr::dangling_mut(), len: 0 };

    /// # Safety
    ///
    /// `list` is null, or `count` segments can be read there during `'a`.
    #[inline]
    pub(crate) unsafe fn read(list: *const Segment, count: u32) -> Result<Self, Failure> {
        match count {
            0 => Ok(Self::EMPTY),
            _ if list.is_null() => Err(Return::BAD_SEG_LIST.into()),
            1 => {
                // SAFETY: not null, so readable as promised.
                let segment = unsafe { list.read() };
                if segment.segment_length == 0 {
                    return Ok(Self::EMPTY); // An empty segment may be null.
                }
                check(&segment)?;
                Ok(Self::One { start: segment.segment_ptr.cast(), len: segment.segment_length })
            }
            // SAFETY: as above, and not longer than what was promised.
            2..=SEGMENTS_MAX => Self::many(unsafe { std::slice::from_raw_parts(list, count as usize) }),
            _ => Err(Return::BAD_SEG_CNT.into()),
        }
    }

    #[cold]
    fn many(segments: &'a [Segment]) -> Result<Self, Failure> {
        let mut len = 0_u32;
        for segment in segments {
            check(segment)?;
            len = len.checked_add(segment.segment_length).ok_or(Return::BAD_SEG_LIST)?;
        }
        Ok(Self::Many { segments, len })
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        match self {
            Self::One { len, .. } | Self::Many { len, .. } => *len,
        }
    }

    /// Returns the destination of a receive.
    #[inline]
    pub(crate) fn receive(self) -> Receive {
        match self {
            Self::One { start, len } => Receive::One { start, len },
            Self::Many { segments, .. } => Receive::Many(boxed(segments)),
        }
    }

    /// Copies all bytes into one buffer, if it can be allocated.
    ///
    /// # Safety
    ///
    /// The segments can be read, and no thread writes them meanwhile.
    pub(crate) unsafe fn gather(self) -> Result<Vec<u8>, Return> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len() as usize).map_err(|_| Return::NO_RESOURCES)?;
        let mut add = |start: *mut u8, len: u32| {
            if len > 0 {
                // SAFETY: as promised; a segment with bytes is not null, which was checked.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len as usize) });
            }
        };
        match self {
            Self::One { start, len } => add(start, len),
            Self::Many { segments, .. } => {
                segments.iter().for_each(|segment| add(segment.segment_ptr.cast(), segment.segment_length));
            }
        }
        Ok(bytes)
    }
}

/// Returns the bytes of a contiguous or empty message of at most `most` bytes. `None` for all others, and for invalid
/// lists.
///
/// # Safety
///
/// As for [`SegmentList::read`]; what the segments point to can be read, and no thread writes it, during `'a`.
#[inline(always)]
pub(crate) unsafe fn short<'a>(list: *const Segment, count: u32, most: u32) -> Option<&'a [u8]> {
    if count == 0 {
        return Some(&[]);
    }
    if count != 1 || list.is_null() {
        return None;
    }
    // SAFETY: not null, so readable as promised.
    let Segment { segment_ptr: start, segment_length: len } = unsafe { list.read() };
    if len == 0 {
        return Some(&[]); // An empty segment may be null.
    }
    if start.is_null() || len > most {
        return None;
    }
    // SAFETY: not null, so `len` bytes can be read there as promised.
    Some(unsafe { std::slice::from_raw_parts(start.cast_const().cast(), len as usize) })
}

#[cold]
fn boxed(segments: &[Segment]) -> Box<[Segment]> {
    segments.into()
}

#[inline]
fn check(segment: &Segment) -> Result<(), Failure> {
    if segment.segment_ptr.is_null() && segment.segment_length > 0 {
        return Err(Return::BAD_SEG_MEM.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(segments: &[Segment]) -> Result<SegmentList<'_>, Return> {
        // SAFETY: the segments are a slice.
        unsafe { SegmentList::read(segments.as_ptr(), segments.len() as u32) }.map_err(|failure| failure.code)
    }

    #[test]
    fn lists_are_checked_before_anything_is_touched() {
        let nowhere = |segment_length| Segment { segment_ptr: std::ptr::null_mut(), segment_length };
        // SAFETY: null is allowed.
        unsafe {
            assert!(SegmentList::read(std::ptr::null(), 0).is_ok());
            assert_eq!(SegmentList::read(std::ptr::null(), 1).unwrap_err().code, Return::BAD_SEG_LIST);
        }
        assert_eq!(read(&[nowhere(0)]).unwrap().len(), 0);
        assert_eq!(read(&[nowhere(1)]).unwrap_err(), Return::BAD_SEG_MEM);
        assert_eq!(read(&[nowhere(0); 256]).unwrap().len(), 0);
        assert_eq!(read(&[nowhere(0); 257]).unwrap_err(), Return::BAD_SEG_CNT);
        let long = Segment { segment_ptr: std::ptr::dangling_mut(), segment_length: u32::MAX };
        assert_eq!(read(&[long, long]).unwrap_err(), Return::BAD_SEG_LIST);
    }

    #[test]
    fn pieces_are_gathered_in_their_order() {
        let (mut first, mut second) = (*b"ab", *b"cde");
        let segment =
            |bytes: &mut [u8]| Segment { segment_ptr: bytes.as_mut_ptr().cast(), segment_length: bytes.len() as u32 };
        let empty = Segment { segment_ptr: std::ptr::null_mut(), segment_length: 0 };
        let segments = [segment(&mut first), empty, segment(&mut second)];
        // SAFETY: the segments are arrays of ours.
        assert_eq!(unsafe { read(&segments).unwrap().gather().unwrap() }, b"abcde");
    }
}

//! Reasons in words, as strings of C.
//!
//! They are made when the library is compiled, so that asking for one takes no memory and no lock: a child of a fork may do it too.

use crate::domain::Handle;
use isthmus_client::{Reason, Refusal};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The texts of all reasons, one after the other, each with its zero byte, and where each begins.
struct StringTable<const BYTES: usize> {
    bytes: [u8; BYTES],
    starts: [usize; Reason::ALL.len()],
}

/// Makes the [`StringTable`] of one column of the table.
macro_rules! string_table {
    ($name:ident, $column:ident) => {
        static $name: StringTable<
            {
                let (mut sum, mut at) = (0, 0);
                while at < Reason::ALL.len() {
                    sum += Reason::ALL[at].$column().len() + 1;
                    at += 1;
                }
                sum
            },
        > = {
            let mut string_table = StringTable { bytes: [0; _], starts: [0; _] };
            let (mut end, mut at) = (0, 0);
            while at < Reason::ALL.len() {
                let text = Reason::ALL[at].$column().as_bytes();
                string_table.starts[at] = end;
                let mut byte = 0;
                while byte < text.len() {
                    string_table.bytes[end] = text[byte];
                    (end, byte) = (end + 1, byte + 1);
                }
                (end, at) = (end + 1, at + 1);
            }
            string_table
        };
    };
}

string_table!(NAMES, name);
string_table!(SUMMARIES, summary);
string_table!(REMEDIES, remedy);

impl<const BYTES: usize> StringTable<BYTES> {
    /// The text for a reason, or for what a call returned because of it.
    fn of(&'static self, code: i32, otherwise: &'static CStr) -> *const c_char {
        let reason = u16::try_from(code.unsigned_abs()).ok().and_then(Reason::from_code);
        let at = reason.and_then(|reason| Reason::ALL.binary_search(&reason).ok());
        let text = at.and_then(|at| CStr::from_bytes_until_nul(&self.bytes[self.starts[at]..]).ok());
        text.unwrap_or(otherwise).as_ptr()
    }
}

/// Returns the meaning of a reason, or of the negative result of a call, as part of a sentence. Constant.
#[unsafe(no_mangle)]
pub extern "C" fn isth_strerror(reason: i32) -> *const c_char {
    SUMMARIES.of(reason, if reason == 0 { c"it is done" } else { c"this library has no such reason" })
}

/// Returns the remedy for a reason, as a sentence. Constant; empty if the number is no reason.
#[unsafe(no_mangle)]
pub extern "C" fn isth_reason_remedy(reason: i32) -> *const c_char {
    REMEDIES.of(reason, c"")
}

/// Returns the identifier of a reason, as in the documentation, in JSON and in metrics: "name-taken". Constant; empty if
/// the number is no reason.
#[unsafe(no_mangle)]
pub extern "C" fn isth_reason_name(reason: i32) -> *const c_char {
    NAMES.of(reason, c"")
}

/// Returns the version of the library, in the form of ISTH_VERSION: major << 16 | minor.
#[unsafe(no_mangle)]
pub extern "C" fn isth_version() -> u32 {
    crate::ISTH_VERSION
}

thread_local! {
    /// Why this thread could not attach.
    static ATTACH_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    /// The last text that `isth_last_error` returned in this thread.
    static RETURNED_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Returns the details of the last refusal on a domain, by any thread; with a null domain, those of this thread's last
/// isth_attach(). Empty if there was none. The string is valid until this thread calls this function again.
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_last_error(domain: *const Handle) -> *const c_char {
    // SAFETY: null, or a live handle by the caller's promise.
    let handle = unsafe { domain.as_ref() };
    catch_unwind(AssertUnwindSafe(|| last_error(handle))).unwrap_or(c"".as_ptr())
}

fn last_error(handle: Option<&Handle>) -> *const c_char {
    let text = match handle {
        Some(handle) if handle.is_child() => return isth_strerror(i32::from(Reason::StillAttached.code())),
        Some(handle) => handle.last_error(),
        None => ATTACH_ERROR.try_with(|error| error.borrow().clone()).unwrap_or_default(),
    };
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending has no such text any more.
    let shown = RETURNED_ERROR.try_with(|shown| {
        let mut shown = shown.borrow_mut();
        *shown = text;
        shown.as_ptr()
    });
    shown.unwrap_or(c"".as_ptr())
}

/// Keeps what `isth_last_error(NULL)` will say in this thread.
pub(crate) fn store_attach_error(refusal: &Refusal) {
    let _ = ATTACH_ERROR.try_with(|error| *error.borrow_mut() = refusal.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: these functions return constant strings.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn every_reason_has_its_texts() {
        for &reason in Reason::ALL {
            for code in [i32::from(reason.code()), crate::domain::code(reason)] {
                assert_eq!(text(isth_strerror(code)), reason.summary());
                assert_eq!(text(isth_reason_name(code)), reason.name());
                assert_eq!(text(isth_reason_remedy(code)), reason.remedy());
            }
        }
    }

    #[test]
    fn unknown_reason_has_a_text() {
        assert_eq!(text(isth_strerror(0)), "it is done");
        for code in [i32::MIN, i32::MAX, -30_000, 65_536 + 1] {
            assert_eq!(text(isth_strerror(code)), "this library has no such reason");
            assert_eq!((text(isth_reason_name(code)), text(isth_reason_remedy(code))), ("", ""));
        }
    }

    #[test]
    fn attach_error_is_per_thread() {
        store_attach_error(&Refusal::new(Reason::NameTaken, "web"));
        let seen = || text(unsafe_last_error());
        assert_eq!(seen(), "another domain has this name: web [name-taken]");
        assert_eq!(std::thread::spawn(move || text(unsafe_last_error()).len()).join().unwrap(), 0);
    }

    fn unsafe_last_error() -> *const c_char {
        // SAFETY: null is allowed.
        unsafe { isth_last_error(std::ptr::null()) }
    }
}

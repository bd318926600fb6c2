//! The private functions of the libibverbs that loaded this provider.
//!
//! They are looked up by name and version instead of being linked. So the library is built without libibverbs, and does nothing if the
//! program's libibverbs has another private ABI.

use crate::abi::context::VerbsContext;
use crate::abi::device::{IbvDevice, VerbsDeviceOps};
use crate::abi::operations::VerbsContextOps34;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

/// The version of the private functions: each private ABI has its own.
const VERSION: &CStr = c"IBVERBS_PRIVATE_34";

type Register = unsafe extern "C" fn(*const VerbsDeviceOps);
type AllocContext = unsafe extern "C" fn(*mut IbvDevice, c_int, usize, *mut VerbsContext, u32) -> *mut c_void;
type SetOps = unsafe extern "C" fn(*mut VerbsContext, *const VerbsContextOps34);
type UninitContext = unsafe extern "C" fn(*mut VerbsContext);

/// The private functions of a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    register: Register,
    alloc_context: AllocContext,
    set_ops: SetOps,
    uninit_context: UninitContext,
}

impl Library {
    /// Returns the functions of the loaded libibverbs. None if there is none, or if it has another private ABI.
    pub(crate) fn loaded() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        // By its name, because a program may have opened libibverbs for itself alone (RTLD_LOCAL), as Python does. The handle is kept:
        // the library must stay as long as this provider.
        // SAFETY: the name is a C string. RTLD_NOLOAD runs no code of another library.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // Under another file name, only the global scope has it.
        let scope = if handle.is_null() { libc::RTLD_DEFAULT } else { handle };
        // SAFETY: the functions of version 34 have these types (libibverbs/driver.h).
        unsafe {
            Some(Self {
                register: std::mem::transmute::<*mut c_void, Register>(symbol(scope, c"verbs_register_driver_34")?),
                alloc_context: std::mem::transmute::<*mut c_void, AllocContext>(symbol(
                    scope,
                    c"_verbs_init_and_alloc_context",
                )?),
                set_ops: std::mem::transmute::<*mut c_void, SetOps>(symbol(scope, c"verbs_set_ops")?),
                uninit_context: std::mem::transmute::<*mut c_void, UninitContext>(symbol(
                    scope,
                    c"verbs_uninit_context",
                )?),
            })
        }
    }

    /// Registers the provider.
    pub(crate) fn register(&self, ops: &'static VerbsDeviceOps) {
        // SAFETY: the table lives for ever. The function puts it on a list.
        unsafe { (self.register)(ops) }
    }

    /// Allocates the context of an open device: `size_of::<T>()` zeroed bytes that begin with a [`VerbsContext`], which is initialised.
    /// Returns null with `errno` set if there is no memory. `free` in C releases it, after [`Self::uninit_context`].
    ///
    /// # Safety
    ///
    /// `device` is the device that libibverbs passed to `alloc_context`, and `cmd_fd` its descriptor. `T` is `repr(C)`, begins with a
    /// [`VerbsContext`], and may be all zeroes.
    pub(crate) unsafe fn alloc_context<T>(&self, device: *mut IbvDevice, cmd_fd: c_int, driver: u32) -> *mut T {
        const { assert!(size_of::<T>() >= size_of::<VerbsContext>()) };
        // The context lies at offset 0, which C passes as a pointer.
        // SAFETY: by the caller's promise.
        unsafe { (self.alloc_context)(device, cmd_fd, size_of::<T>(), std::ptr::null_mut(), driver) }.cast()
    }

    /// Sets the operations of a context. Those that are empty keep their functions.
    ///
    /// # Safety
    ///
    /// The context is from [`Self::alloc_context`].
    pub(crate) unsafe fn set_ops(&self, context: *mut VerbsContext, ops: &VerbsContextOps34) {
        // SAFETY: by the caller's promise. The function copies the table.
        unsafe { (self.set_ops)(context, ops) }
    }

    /// Ends a context: closes its descriptors, and releases the memory that libibverbs has added to it.
    ///
    /// # Safety
    ///
    /// The context is from [`Self::alloc_context`] and is not used any more.
    pub(crate) unsafe fn uninit_context(&self, context: *mut VerbsContext) {
        // SAFETY: by the caller's promise.
        unsafe { (self.uninit_context)(context) }
    }
}

/// The address of a private function in an open library or scope.
fn symbol(scope: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both are C strings, and the scope is open.
    let address = unsafe { libc::dlvsym(scope, name.as_ptr(), VERSION.as_ptr()) };
    (!address.is_null()).then_some(address)
}

#[cfg(test)]
mod tests;

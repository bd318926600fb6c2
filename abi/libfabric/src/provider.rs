//! The provider table that libfabric finds when it opens the library.

use crate::abi::consts::version;
use crate::abi::info::Provider;
use crate::{fabric, getinfo};
use std::cell::UnsafeCell;

/// The provider's name.
pub(crate) const NAME: &std::ffi::CStr = c"isthmus";

/// The provider's version. Of several providers with one name, libfabric uses the highest.
const VERSION: u32 = version(0, 1);

/// The highest supported API version. It is above all existing ones, because the provider adapts to the version that
/// `fi_getinfo()` gets.
const FI_VERSION: u32 = version(99, 0);

/// Storage that libfabric writes to.
#[repr(transparent)]
struct ProviderCell(UnsafeCell<Provider>);

// SAFETY: only libfabric touches it once it has the pointer, and it does so under its own lock.
unsafe impl Sync for ProviderCell {}

static PROVIDER: ProviderCell = ProviderCell(UnsafeCell::new(Provider {
    version: VERSION,
    fi_version: FI_VERSION,
    context: [std::ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo: getinfo::getinfo,
    fabric: fabric::open,
    cleanup: None,
}));

/// The entry point that libfabric calls after it has opened the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut std::ffi::c_void {
    PROVIDER.0.get().cast()
}

//! The provider that libibverbs finds: its registration, the devices that are its own, and their allocation.

use crate::abi::consts::CORE_SUPPORT_OPTIONAL_MR_ACCESS;
use crate::abi::device::{VerbsDevice, VerbsDeviceOps, VerbsSysfsDev};
use crate::attributes::is_isthmus_device;
use crate::libibverbs::Library;
use crate::{channels, cm, device};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

static PROVIDER: VerbsDeviceOps = VerbsDeviceOps {
    name: c"isthmus".as_ptr(),
    match_min_abi_version: 1,
    match_max_abi_version: 1,
    match_table: std::ptr::null(),
    static_providers: std::ptr::null(),
    match_device: Some(match_device),
    alloc_context: Some(device::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// Runs when the library is loaded. libibverbs of another private ABI has no function to register with; it lists no device of ours.
extern "C" fn register() {
    if let Some(library) = Library::loaded() {
        library.register(&PROVIDER);
        channels::register();
        cm::register();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

/// The version of this library, as a C string.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_rdma_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns true if a device is one of this provider's, by its name.
unsafe extern "C" fn match_device(device: *mut VerbsSysfsDev) -> bool {
    // SAFETY: libibverbs passes a device that it has found. Only its name, which ends inside the array, is borrowed.
    let device = unsafe { device.as_ref() }.filter(|device| is_isthmus_device(&device.ibdev_name));
    if let Some(device) = device {
        // SAFETY: libibverbs has written a path that ends inside the array.
        let folder = unsafe { CStr::from_ptr(device.ibdev_path.as_ptr()) };
        cm::found(Path::new(OsStr::from_bytes(folder.to_bytes())));
    }
    device.is_some()
}

/// Allocates a device. libibverbs fills in its names and the table.
unsafe extern "C" fn alloc_device(_: *mut VerbsSysfsDev) -> *mut VerbsDevice {
    // SAFETY: calloc has no requirement.
    let device = unsafe { libc::calloc(1, size_of::<VerbsDevice>()) }.cast::<VerbsDevice>();
    // SAFETY: null, or zeroed memory of this size, and zeroes are a valid device.
    if let Some(device) = unsafe { device.as_mut() } {
        device.core_support = CORE_SUPPORT_OPTIONAL_MR_ACCESS;
    }
    device
}

unsafe extern "C" fn uninit_device(device: *mut VerbsDevice) {
    // SAFETY: from `alloc_device`, and not used any more.
    unsafe { libc::free(device.cast()) }
}

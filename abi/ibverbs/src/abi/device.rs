//! Devices: the structures that a provider and libibverbs exchange (`libibverbs/driver.h`).

use super::assert_layout;
use super::context::VerbsContext;
use std::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`
#[repr(C)]
pub(crate) struct IbvDevice {
    pub(crate) unused: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct verbs_device`
#[repr(C)]
pub(crate) struct VerbsDevice {
    pub(crate) device: IbvDevice,
    pub(crate) ops: *const VerbsDeviceOps,
    pub(crate) refcount: c_int,
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) sysfs: *mut VerbsSysfsDev,
    pub(crate) core_support: u64,
}

/// The first part of `struct verbs_sysfs_dev`: a device that libibverbs has found. What follows differs between versions.
#[repr(C)]
pub(crate) struct VerbsSysfsDev {
    pub(crate) entry: [*mut c_void; 2],
    pub(crate) provider_data: *mut c_void,
    pub(crate) matched: *const c_void,
    pub(crate) flags: u32,
    pub(crate) sysfs_name: [c_char; 64],
    pub(crate) sysfs_cdev: u64,
    pub(crate) ibdev_name: [c_char; 64],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct verbs_device_ops`
#[repr(C)]
pub(crate) struct VerbsDeviceOps {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const c_void,
    pub(crate) static_providers: *const c_void,
    pub(crate) match_device: Option<unsafe extern "C" fn(*mut VerbsSysfsDev) -> bool>,
    pub(crate) alloc_context: Option<unsafe extern "C" fn(*mut IbvDevice, c_int, *mut c_void) -> *mut VerbsContext>,
    pub(crate) import_context: Option<unsafe extern "C" fn(*mut IbvDevice, c_int) -> *mut VerbsContext>,
    pub(crate) alloc_device: Option<unsafe extern "C" fn(*mut VerbsSysfsDev) -> *mut VerbsDevice>,
    pub(crate) uninit_device: Option<unsafe extern "C" fn(*mut VerbsDevice)>,
}

// SAFETY: the pointers name constants, which nothing writes.
unsafe impl Sync for VerbsDeviceOps {}

assert_layout! {
    IbvDevice: 664 { node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408 }
    VerbsDevice: 712 { ops: 664, refcount: 672, entry: 680, sysfs: 696, core_support: 704 }
    VerbsSysfsDev: 432 { provider_data: 16, matched: 24, flags: 32, sysfs_name: 36, sysfs_cdev: 104, ibdev_name: 112, ibdev_path: 176 }
    VerbsDeviceOps: 72 { match_min_abi_version: 8, match_max_abi_version: 12, match_table: 16, static_providers: 24, match_device: 32,
        alloc_context: 40, import_context: 48, alloc_device: 56, uninit_device: 64 }
}

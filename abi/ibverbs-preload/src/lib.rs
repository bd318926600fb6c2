//! `libisthmus-verbs.so`: preloaded into RDMA programs, for what libibverbs does itself with the kernel.
//!
//! ```text
//!   nl_connect(RDMA) ────────► fails, so that libibverbs looks for devices in SYSFS_PATH, also where the kernel has InfiniBand
//!   ibv_create_comp_channel ─► the provider of Isthmus, if the context is its own; else libibverbs
//!   ibv_destroy_comp_channel ► the same; libibverbs closes the program's descriptor
//!   ibv_get_cq_event ────────► the provider sleeps until its channel has an event; then, and for others, libibverbs
//!   rdma_create_event_channel,
//!   write ───────────────────► commands to the connection manager (module `cm`)
//! ```
//!
//! The provider announces itself when libibverbs loads it. Without a provider, all functions are those of the libraries.

mod cm;

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The netlink protocol by which libibverbs asks the kernel for devices.
const NETLINK_RDMA: c_int = 20;

/// The error of libnl for a protocol that the kernel does not have.
const NLE_PROTO_MISMATCH: c_int = 10;

type CreateChannel = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
type DestroyChannel = unsafe extern "C" fn(*mut c_void, Destroy) -> c_int;
type GetEvent = unsafe extern "C-unwind" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
type SleepForEvent = unsafe extern "C-unwind" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void, GetEvent) -> c_int;
type Connect = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// The function of the provider that makes channels, or null.
static CREATE_CHANNEL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The function of the provider that destroys channels, or null.
static DESTROY_CHANNEL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The function of the provider that sleeps until a channel has an event, or null.
static SLEEP_FOR_EVENT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// libibverbs' `ibv_get_cq_event()`, or null before it was looked up.
static GET_EVENT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the function of the provider. It returns null with `errno` `ENODEV` for a context of another provider.
///
/// # Safety
///
/// The function may be called for ever, with open contexts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_verbs_set_channels(create: CreateChannel) {
    CREATE_CHANNEL.store(create as *mut c_void, Ordering::Release);
}

/// Sets the function of the provider. It destroys a channel by the function that it is given, and releases what it has for the channel.
///
/// # Safety
///
/// The function may be called for ever, with the argument of `ibv_destroy_comp_channel()` and with that function of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_verbs_set_destroy(destroy: DestroyChannel) {
    DESTROY_CHANNEL.store(destroy as *mut c_void, Ordering::Release);
}

/// Sets the function of the provider. It sleeps until a channel has an event, if the channel is one of its own, and calls the function
/// that it is given, which reads the event.
///
/// # Safety
///
/// The function may be called for ever, with the arguments of `ibv_get_cq_event()` and with that function of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_verbs_set_events(sleep: SleepForEvent) {
    SLEEP_FOR_EVENT.store(sleep as *mut c_void, Ordering::Release);
}

/// Gets the next event of a completion channel. A thread may be cancelled in here, so no frame has anything to drop.
///
/// # Safety
///
/// As for the function of libibverbs: the channel is open, and the other arguments are places for pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut c_void,
    cq: *mut *mut c_void,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut get = GET_EVENT.load(Ordering::Relaxed);
    if get.is_null() {
        let Some(found) = next(c"ibv_get_cq_event", c"libibverbs.so.1", Some(c"IBVERBS_1.1")) else {
            set_errno(libc::ENOSYS);
            return -1;
        };
        GET_EVENT.store(found, Ordering::Relaxed);
        get = found;
    }
    // SAFETY: the function of libibverbs has this type.
    let get: GetEvent = unsafe { std::mem::transmute(get) };
    let sleep = SLEEP_FOR_EVENT.load(Ordering::Acquire);
    if sleep.is_null() {
        // SAFETY: by the caller's promise.
        return unsafe { get(channel, cq, cq_context) };
    }
    // SAFETY: only `isthmus_verbs_set_events` stores the pointer, from a function of this type.
    let sleep: SleepForEvent = unsafe { std::mem::transmute(sleep) };
    // SAFETY: by the caller's promise.
    unsafe { sleep(channel, cq, cq_context, get) }
}

/// Creates a completion channel.
///
/// # Safety
///
/// As for the function of libibverbs: the context is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut c_void) -> *mut c_void {
    let create = CREATE_CHANNEL.load(Ordering::Acquire);
    if !create.is_null() {
        // SAFETY: only `isthmus_verbs_set_channels` stores the pointer, from a function of this type.
        let create: CreateChannel = unsafe { std::mem::transmute(create) };
        // SAFETY: by the caller's promise.
        let channel = unsafe { create(context) };
        if !channel.is_null() || errno() != libc::ENODEV {
            return channel;
        }
    }
    let next = next(c"ibv_create_comp_channel", c"libibverbs.so.1", Some(c"IBVERBS_1.0"));
    let Some(next) = next else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: the function of libibverbs has this type.
    let next: CreateChannel = unsafe { std::mem::transmute(next) };
    // SAFETY: by the caller's promise.
    unsafe { next(context) }
}

/// Destroys a completion channel.
///
/// # Safety
///
/// As for the function of libibverbs: the channel is one that was created, and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut c_void) -> c_int {
    let Some(next) = next(c"ibv_destroy_comp_channel", c"libibverbs.so.1", Some(c"IBVERBS_1.0")) else {
        return libc::ENOSYS;
    };
    // SAFETY: the function of libibverbs has this type.
    let next: Destroy = unsafe { std::mem::transmute(next) };
    let destroy = DESTROY_CHANNEL.load(Ordering::Acquire);
    if destroy.is_null() {
        // SAFETY: by the caller's promise.
        return unsafe { next(channel) };
    }
    // SAFETY: only `isthmus_verbs_set_destroy` stores the pointer, from a function of this type.
    let destroy: DestroyChannel = unsafe { std::mem::transmute(destroy) };
    // SAFETY: by the caller's promise.
    unsafe { destroy(channel, next) }
}

/// Connects a netlink socket. The protocol of RDMA is refused while `SYSFS_PATH` names a folder of devices.
///
/// # Safety
///
/// As for the function of libnl.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nl_connect(socket: *mut c_void, protocol: c_int) -> c_int {
    if protocol == NETLINK_RDMA && std::env::var_os("SYSFS_PATH").is_some() {
        return -NLE_PROTO_MISMATCH;
    }
    let Some(next) = next(c"nl_connect", c"libnl-3.so.200", None) else { return -NLE_PROTO_MISMATCH };
    // SAFETY: the function of libnl has this type.
    let next: Connect = unsafe { std::mem::transmute(next) };
    // SAFETY: by the caller's promise.
    unsafe { next(socket, protocol) }
}

/// The function that this library takes the place of: the next one in the order of libraries, or that of a library that was opened later.
fn next(name: &CStr, library: &CStr, version: Option<&CStr>) -> Option<*mut c_void> {
    let find = |scope| match version {
        // SAFETY: C strings, and an open scope.
        Some(version) => unsafe { libc::dlvsym(scope, name.as_ptr(), version.as_ptr()) },
        // SAFETY: as above.
        None => unsafe { libc::dlsym(scope, name.as_ptr()) },
    };
    let found = find(libc::RTLD_NEXT);
    if !found.is_null() {
        return Some(found);
    }
    // SAFETY: a C string. RTLD_NOLOAD runs no code of another library; the handle is kept, because the function is called.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    let found = find(handle);
    (!found.is_null()).then_some(found)
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's error number.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

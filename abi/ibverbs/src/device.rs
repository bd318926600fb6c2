//! An open device, as programs hold it: the context, its lock, and the queries.

use crate::abi::consts::DRIVER_UNKNOWN;
use crate::abi::context::{IbvContext, VerbsContext};
use crate::abi::device::IbvDevice;
use crate::abi::objects::ContextObject;
use crate::abi::queries::{IbvDeviceAttrEx, IbvPortAttr, IbvQueryDeviceExInput};
use crate::adapter::Adapter;
use crate::attributes;
use crate::events::Events;
use crate::exposures::Exposures;
use crate::handover::Handover;
use crate::libibverbs::Library;
use crate::serving::Serving;
use crate::table::OPERATIONS;
use isthmus_client::{AttachError, Options};
use isthmus_shm::biased_lock::{BiasedLock, BiasedLockGuard};
use isthmus_verbs::Gid;
use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The context of an open device.
pub(crate) type Context = ContextObject<Device>;

/// State that the program and the serving thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) adapter: BiasedLock<Adapter>,
    pub(crate) handover: Handover,
}

impl Shared {
    /// The lock, for a thread of the program, without counting a call.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedLockGuard<'_, Adapter> {
        self.adapter.try_lock().unwrap_or_else(|| self.adapter.lock())
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<Shared>,
    /// The serving thread, or none if it could not start.
    serving: Option<Serving>,
    /// The regions that peers may access.
    pub(crate) exposures: Arc<Exposures>,
    /// The GIDs of the port, by index.
    pub(crate) gids: Vec<Gid>,
    guid: u64,
}

impl Device {
    /// The lock. One that a panic left behind is taken all the same: what was begun then fails, the rest goes on.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedLockGuard<'_, Adapter> {
        let guard = self.shared.lock();
        self.shared.handover.note_call();
        guard
    }

    /// A call ends after which the program may poll memory: it has posted requests, or taken completions.
    #[inline]
    pub(crate) fn end_call(&self, adapter: &mut Adapter) {
        if self.shared.handover.arms_after_calls() {
            adapter.arm_after_call();
        }
    }

    /// State that a channel of the device needs while it sleeps.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends the thread, and leaves the daemon.
    fn close(mut self) {
        let is_child = self.lock().is_child(); // A fork does not copy the thread.
        if !is_child {
            self.shared.handover.stop();
            self.serving.take().into_iter().for_each(Serving::join);
        }
        self.lock().close();
    }

    /// The open device of a context.
    ///
    /// # Safety
    ///
    /// The context is of this provider and is open.
    #[inline]
    pub(crate) unsafe fn of<'a>(context: *const IbvContext) -> &'a Self {
        // SAFETY: by the caller's promise; `domain` was set when the context was opened.
        unsafe { Context::of(context).and_then(|context| context.domain.as_ref()) }.expect("an open context")
    }
}

/// Sets the error number of this thread.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's error number.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// Returns null, with the error number set.
pub(crate) fn fail<T>(errno: Errno) -> *mut T {
    set_errno(errno);
    std::ptr::null_mut()
}

/// The result of a call that returns an error number.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

/// Opens a device: attaches to the daemon.
pub(crate) unsafe extern "C" fn alloc_context(
    device: *mut IbvDevice,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut VerbsContext {
    let Some(library) = Library::loaded() else { return fail(Errno::NOSYS) };
    // SAFETY: libibverbs passes a device that it has found. Its path ends inside the array.
    let folder = unsafe { CStr::from_ptr((*device).ibdev_path.as_ptr()) };
    let opened = match open(Path::new(OsStr::from_bytes(folder.to_bytes()))) {
        Ok(opened) => opened,
        Err(error) => {
            // tidy(print): libibverbs passes on an error number alone, which does not say what to do.
            eprintln!("isthmus: cannot open the RDMA device: {error}");
            return fail(Errno::NODEV);
        }
    };
    let (opened, async_fd) = opened;
    // SAFETY: the device and the descriptor are those of this call; `Context` begins with the context and may be all zeroes.
    let context = unsafe { library.alloc_context::<Context>(device, cmd_fd, DRIVER_UNKNOWN) };
    // SAFETY: null, or a context that only this thread knows.
    let Some(object) = (unsafe { context.as_mut() }) else {
        opened.close();
        return std::ptr::null_mut();
    };
    object.domain = Box::into_raw(Box::new(opened));
    let verbs = object.verbs.get_mut();
    verbs.context.async_fd = async_fd.into_raw_fd();
    verbs.context.num_comp_vectors = attributes::COMPLETION_VECTORS.cast_signed();
    // SAFETY: the context is from `alloc_context`.
    unsafe { library.set_ops(verbs, &OPERATIONS) };
    verbs
}

/// Attaches, and reads the tables of the port. Returns the descriptor of asynchronous events as well.
fn open(folder: &Path) -> Result<(Device, OwnedFd), String> {
    let options = Options::from_environment().map_err(|error| error.to_string())?;
    let (events, async_fd) = Events::new().map_err(|error| format!("no pipe for events: {error}"))?;
    let adapter = Adapter::open(&options, events).map_err(|error: AttachError| error.to_string())?;
    let exposures = Arc::clone(adapter.exposures());
    let handover =
        Handover::new(adapter.fd()).map_err(|error| format!("no descriptor for the serving thread: {error}"))?;
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let guid = attributes::parse_guid(read("node_guid").trim()).unwrap_or(0);
    let shared = Arc::new(Shared { adapter: BiasedLock::new(adapter), handover });
    // Before the first connection, too: a program that waits for clients makes no calls while its daemon restarts.
    let serving = Serving::start(&shared);
    shared.lock().has_serving_thread = serving.is_some();
    let device = Device { shared, serving, exposures, gids: gids(&folder.join("ports/1/gids")), guid };
    Ok((device, async_fd))
}

/// The GIDs of the port, from the files that libibverbs reads as well.
pub(crate) fn gids(folder: &Path) -> Vec<Gid> {
    let file = |index: usize| -> PathBuf { folder.join(index.to_string()) };
    (0..).map_while(|index| parse_gid(std::fs::read_to_string(file(index)).ok()?.trim())).collect()
}

/// A GID as eight groups of four hexadecimal digits.
fn parse_gid(text: &str) -> Option<Gid> {
    let address: std::net::Ipv6Addr = text.parse().ok()?;
    Some(Gid(address.octets()))
}

/// Closes a device: leaves the daemon.
pub(crate) unsafe extern "C" fn free_context(context: *mut IbvContext) {
    // SAFETY: libibverbs passes an open context that nothing uses any more.
    let object = unsafe { context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<Context>() };
    // SAFETY: as above; the device is from `Box::into_raw`.
    let device = unsafe { Box::from_raw((*object).domain) };
    device.close();
    if let Some(library) = Library::loaded() {
        // SAFETY: the context is from `alloc_context`, and `free` releases what it allocated.
        unsafe {
            library.uninit_context((*object).verbs.get());
            libc::free(object.cast());
        }
    }
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut IbvContext,
    _input: *const IbvQueryDeviceExInput,
    attr: *mut IbvDeviceAttrEx,
    len: usize,
) -> c_int {
    // SAFETY: libibverbs passes an open context, and `len` bytes at `attr`.
    unsafe { attributes::fill_device_attributes_ex(attr, len, Device::of(context).guid) };
    0
}

pub(crate) unsafe extern "C" fn query_port(context: *mut IbvContext, port: u8, attr: *mut IbvPortAttr) -> c_int {
    if port != attributes::PORT {
        return Errno::INVAL.raw_os_error();
    }
    // SAFETY: libibverbs passes an open context, and an attribute structure of its private ABI.
    unsafe { attributes::fill_port_attributes_34(attr, Device::of(context).gids.len()) };
    0
}

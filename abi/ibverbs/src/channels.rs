//! Completion channels as programs hold them.
//!
//! libibverbs makes channels with a command to the kernel, which a device without a kernel driver does not have. The preloaded library
//! (`abi/ibverbs-preload`) therefore takes the place of `ibv_create_comp_channel()`, and asks this provider for channels of its contexts. The two
//! find each other when the provider is loaded. Everything else about channels is libibverbs' own: it reads the descriptor, and closes it.

use crate::abi::context::IbvContext;
use crate::abi::objects::{IbvCompChannel, IbvCq};
use crate::device::{Context, Device, Shared, fail};
use crate::events::ChannelPipe;
use crate::sleeping::Sleep;
use crate::table::OPERATIONS;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Creates a channel, or returns null with `errno` `ENODEV` for a context of another provider.
pub(crate) type CreateChannel = unsafe extern "C" fn(*mut IbvContext) -> *mut IbvCompChannel;

/// libibverbs' `ibv_get_cq_event()`, which reads the descriptor of the channel. It is a point of cancellation.
pub(crate) type GetEvent = unsafe extern "C-unwind" fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;

/// Gets an event of a channel. The last argument is the function of libibverbs.
pub(crate) type SleepForEvent =
    unsafe extern "C-unwind" fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void, GetEvent) -> c_int;

/// libibverbs' `ibv_destroy_comp_channel()`, which closes the descriptor of the channel if no queue uses it.
pub(crate) type Destroy = unsafe extern "C" fn(*mut IbvCompChannel) -> c_int;

/// Destroys a channel. The last argument is the function of libibverbs.
pub(crate) type DestroyChannel = unsafe extern "C" fn(*mut IbvCompChannel, Destroy) -> c_int;

/// A channel that a program has made.
#[derive(Clone, Debug)]
struct Channel {
    pipe: Arc<ChannelPipe>,
    device: Weak<Shared>,
}

/// All channels, by the descriptor of the program.
static CHANNELS: Mutex<Option<HashMap<c_int, Channel>>> = Mutex::new(None);

/// Tells the preloaded library, if there is one, that this provider makes channels, and sleeps on them.
pub(crate) fn register() {
    // SAFETY: the name is a C string.
    let hook = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (channels, events) = (hook(c"isthmus_verbs_set_channels"), hook(c"isthmus_verbs_set_events"));
    let destroy = hook(c"isthmus_verbs_set_destroy");
    if !channels.is_null() {
        // SAFETY: the preloaded library of this project defines the name, as a function of this type.
        let hook: unsafe extern "C" fn(CreateChannel) = unsafe { std::mem::transmute(channels) };
        // SAFETY: the function stays as long as the library, which libibverbs never closes.
        unsafe { hook(create_channel) };
    }
    if !events.is_null() {
        // SAFETY: as above.
        let hook: unsafe extern "C" fn(SleepForEvent) = unsafe { std::mem::transmute(events) };
        // SAFETY: as above.
        unsafe { hook(get_event) };
    }
    if !destroy.is_null() {
        // SAFETY: as above.
        let hook: unsafe extern "C" fn(DestroyChannel) = unsafe { std::mem::transmute(destroy) };
        // SAFETY: as above.
        unsafe { hook(destroy_channel) };
    }
}

/// True if a context is of this provider: its table of operations has the function for polling.
///
/// # Safety
///
/// The context is open.
unsafe fn is_ours(context: *const IbvContext) -> bool {
    // SAFETY: by the caller's promise.
    let poll = unsafe { (*context).ops.poll_cq };
    OPERATIONS.poll_cq.is_some_and(|ours| ours as *const () == poll.cast())
}

unsafe extern "C" fn create_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    // SAFETY: the program passes an open context.
    if unsafe { !is_ours(context) || Context::of(context).is_none() } {
        return fail(Errno::NODEV);
    }
    let (pipe, program) = match ChannelPipe::new() {
        Ok(made) => made,
        Err(errno) => return fail(errno),
    };
    let fd = program.as_raw_fd();
    // SAFETY: libibverbs releases a channel by `free`, so it comes from `malloc`. The object is written before it is used.
    let channel = unsafe { libc::malloc(size_of::<IbvCompChannel>()) }.cast::<IbvCompChannel>();
    if channel.is_null() {
        return fail(Errno::NOMEM);
    }
    // SAFETY: the program passes an open context.
    let device = Arc::downgrade(unsafe { Device::of(context) }.shared());
    let mut channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
    channels.get_or_insert_default().insert(fd, Channel { pipe: Arc::new(pipe), device });
    // SAFETY: the memory has this size.
    unsafe { channel.write(IbvCompChannel { context, fd: program.into_raw_fd(), refcnt: 0 }) };
    channel
}

/// Destroys a channel that no queue uses, and closes our ends of its pipe. Its descriptor may be another channel's as soon as libibverbs has
/// closed it, so it is forgotten before.
unsafe extern "C" fn destroy_channel(channel: *mut IbvCompChannel, next: Destroy) -> c_int {
    // SAFETY: the program passes a channel that it has created.
    let (fd, is_ours) = unsafe { ((*channel).fd, (*channel).refcnt == 0 && is_ours((*channel).context)) };
    let channels = || CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
    let forgotten = if is_ours { channels().as_mut().and_then(|channels| channels.remove(&fd)) } else { None };
    // SAFETY: libibverbs' function, with the program's argument.
    let result = unsafe { next(channel) };
    if result != 0 {
        forgotten.into_iter().for_each(|channel| _ = channels().get_or_insert_default().insert(fd, channel));
    }
    result
}

/// The pipe of a channel that a program passes. None for a null pointer.
///
/// # Safety
///
/// The pointer is null or a live channel.
pub(crate) unsafe fn pipe_of(channel: *const IbvCompChannel) -> Option<Arc<ChannelPipe>> {
    // SAFETY: by the caller's promise.
    find(unsafe { channel.as_ref() }?.fd).map(|found| found.pipe)
}

fn find(fd: c_int) -> Option<Channel> {
    let channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
    channels.as_ref()?.get(&fd).cloned()
}

/// Sleeps until the channel has an event, and has libibverbs read it. A channel of another provider may have the descriptor of a closed one of
/// ours. It is waited for as well, because only the program's descriptor counts.
unsafe extern "C-unwind" fn get_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
    next: GetEvent,
) -> c_int {
    // SAFETY: the program passes a channel that it has created.
    let fd = unsafe { (*channel).fd };
    // SAFETY: the program's arguments, and libibverbs' function.
    let read = || unsafe { next(channel, cq, cq_context) };
    let Some((pipe, device)) = find(fd).and_then(|found| Some((found.pipe, found.device.upgrade()?))) else {
        return read();
    };
    // SAFETY: the channel holds the descriptor, and the program does not destroy it during this call.
    Sleep::new(device, pipe).get(unsafe { BorrowedFd::borrow_raw(fd) }, read)
}

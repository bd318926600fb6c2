//! Completion channels as programs hold them.
//!
//! libibverbs makes channels with a command to the kernel, which a device without a kernel driver does not have. The preloaded library
//! (`abi/ibverbs-preload`) therefore takes the place of `ibv_create_comp_channel()`, and asks this provider for channels of its contexts. The two
//! find each other when the provider is loaded. Everything else about channels is libibverbs' own: it reads the descriptor, and closes it.

use crate::abi::context::IbvContext;
use crate::abi::objects::IbvCompChannel;
use crate::device::{Context, fail};
use crate::events::ChannelPipe;
use crate::table::OPERATIONS;
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// Creates a channel, or returns null with `errno` `ENODEV` for a context of another provider.
pub(crate) type CreateChannel = unsafe extern "C" fn(*mut IbvContext) -> *mut IbvCompChannel;

/// The pipes of all channels, by the descriptor of the program. A descriptor that libibverbs has closed is replaced when it is used again.
static PIPES: Mutex<Option<HashMap<c_int, Arc<ChannelPipe>>>> = Mutex::new(None);

/// Tells the preloaded library, if there is one, that this provider makes channels.
pub(crate) fn register() {
    // SAFETY: the name is a C string.
    let hook = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"isthmus_verbs_set_channels".as_ptr()) };
    if !hook.is_null() {
        // SAFETY: the preloaded library of this project defines the name, as a function of this type.
        let hook: unsafe extern "C" fn(CreateChannel) = unsafe { std::mem::transmute(hook) };
        // SAFETY: the function stays as long as the library, which libibverbs never closes.
        unsafe { hook(create_channel) };
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
    let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    pipes.get_or_insert_default().insert(fd, Arc::new(pipe));
    // SAFETY: the memory has this size.
    unsafe { channel.write(IbvCompChannel { context, fd: program.into_raw_fd(), refcnt: 0 }) };
    channel
}

/// The pipe of a channel that a program passes. None for a null pointer.
///
/// # Safety
///
/// The pointer is null or a live channel.
pub(crate) unsafe fn pipe_of(channel: *const IbvCompChannel) -> Option<Arc<ChannelPipe>> {
    // SAFETY: by the caller's promise.
    let fd = unsafe { channel.as_ref() }?.fd;
    let pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    pipes.as_ref()?.get(&fd).cloned()
}

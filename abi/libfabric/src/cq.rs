//! Completion queues.
//!
//! A completion queue stores no entries. Reading it makes progress on the bound endpoints and collects their
//! completions.

use crate::abi::consts::{
    FI_CLASS_CQ, FI_CQ_COND_NONE, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED,
    FI_CQ_FORMAT_UNSPEC, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD, version,
};
use crate::abi::objects::{Fid, FidCq, FidDomain};
use crate::abi::requests::{CqAttr, CqEntry, CqErrEntry};
use crate::abi::tables::{CqOps, Ops};
use crate::domain::DomainObject;
use crate::engine::events::{Event, Side};
use crate::errno::{Errno, call, number};
use crate::shared::{Locked, Member, Shared, State};
use crate::stubs;
use crate::wait_object;
use isthmus_client::PollBackoff;
use isthmus_layout::SlotTable;
use rustix::fd::AsRawFd;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first API version in which error entries name the sender of a message.
const SRC_ADDR_API_VERSION: u32 = version(1, 20);

/// The time for which a reader that may sleep polls before it does.
const SPIN: Duration = Duration::from_micros(50);

/// The state of a completion queue that the lock covers.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The bound endpoints, each with the sides that report to this queue.
    sources: Vec<(u32, [bool; 2])>,
    signalled: bool,
    idle: PollBackoff,
}

impl Queue {
    /// Binds one side of an endpoint.
    pub(crate) fn bind(&mut self, member: u32, side: Side) {
        let at = self.sources.iter().position(|(bound, _)| *bound == member).unwrap_or_else(|| {
            self.sources.push((member, [false; 2]));
            self.sources.len() - 1
        });
        self.sources[at].1[side as usize] = true;
    }

    /// Removes an endpoint that is closed.
    pub(crate) fn forget(&mut self, member: u32) {
        self.sources.retain(|(bound, _)| *bound != member);
    }
}

#[repr(C)]
pub(crate) struct CqObject {
    raw: FidCq,
    shared: Arc<Shared>,
    pub(crate) slot: u32,
    format: c_int,
    wait: c_int,
    /// The last read found no entry. A hint that is read without the lock.
    was_empty: AtomicBool,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind: stubs::bind,
    control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static CQ_OPS: CqOps = CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

/// # Safety
///
/// `cq` was made in `open` and is not closed.
unsafe fn object<'a>(cq: *mut FidCq) -> &'a CqObject {
    // SAFETY: an object begins with what the caller sees of it.
    unsafe { &*cq.cast::<CqObject>() }
}

/// Opens a completion queue. The queue grows as needed, regardless of the requested size.
pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    cq: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: null, or readable.
        let (format, wait, cond) = unsafe { attr.as_ref() }
            .map_or((FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE, FI_CQ_COND_NONE), |a| (a.format, a.wait_obj, a.wait_cond));
        let format = if format == FI_CQ_FORMAT_UNSPEC { FI_CQ_FORMAT_TAGGED } else { format };
        if !(FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED).contains(&format)
            || !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD)
            || cond != FI_CQ_COND_NONE
        {
            return Err(Errno::NOSYS);
        }
        // SAFETY: a domain of ours.
        let shared = unsafe { DomainObject::shared(domain) };
        let slot = shared.lock().queues.insert(Queue::default());
        let raw = FidCq { fid: Fid { class: FI_CLASS_CQ, context, ops: &OPS }, ops: &CQ_OPS };
        // SAFETY: writable.
        unsafe {
            cq.write(
                Box::into_raw(Box::new(CqObject {
                    raw,
                    shared,
                    slot,
                    format,
                    wait,
                    was_empty: AtomicBool::new(false),
                }))
                .cast(),
            )
        };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        let object = unsafe { Box::from_raw(fid.cast::<CqObject>()) };
        object.shared.lock().queues.remove(object.slot);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: a queue of ours.
        let object = unsafe { object(fid.cast()) };
        match command {
            // SAFETY: the argument is room for a descriptor.
            FI_GETWAIT => unsafe { copy_fd(&object.shared, object.wait, arg) },
            FI_GETWAITOBJ => {
                // SAFETY: the argument is room for a number.
                unsafe { arg.cast::<c_int>().write(object.wait) };
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}

/// Writes the descriptor that a program may sleep on.
///
/// # Safety
///
/// `arg` is room for a descriptor.
pub(crate) unsafe fn copy_fd(shared: &Shared, wait: c_int, arg: *mut c_void) -> Result<(), Errno> {
    if wait == FI_WAIT_NONE || wait == FI_WAIT_YIELD {
        return Err(Errno::NODATA);
    }
    // SAFETY: as promised.
    unsafe { arg.cast::<c_int>().write(shared.wait_object.fd().as_raw_fd()) };
    Ok(())
}

/// Checks whether a program may sleep on the descriptor of an object. Objects without events are accepted.
///
/// # Safety
///
/// `fid` is an object of ours.
pub(crate) unsafe fn trywait(fid: *mut Fid) -> Result<(), Errno> {
    // SAFETY: as promised.
    if unsafe { (*fid).class } != FI_CLASS_CQ {
        return Ok(());
    }
    // SAFETY: its class says that it is a queue.
    let object = unsafe { object(fid.cast()) };
    let mut state = object.shared.lock();
    object.shared.wait_object.clear();
    progress_queue(&mut state, object.slot)?;
    if has_entry(&state, object.slot) || !state.arm_all() || has_entry(&state, object.slot) {
        return Err(Errno::AGAIN);
    }
    state.watch();
    Ok(())
}

/// Makes progress on the endpoints of a completion queue.
fn progress_queue(state: &mut State, slot: u32) -> Result<(), Errno> {
    let State { members, queues, .. } = state;
    let queue = queues.get(slot).ok_or(Errno::OPBADSTATE)?;
    for &(member, _) in &queue.sources {
        if let Some(member) = members.get_mut(member) {
            member.endpoint.progress();
        }
    }
    Ok(())
}

fn has_entry(state: &State, slot: u32) -> bool {
    let State { members, queues, .. } = state;
    let Some(queue) = queues.get(slot) else { return false };
    queue.sources.iter().any(|&(member, sides)| {
        let member = members.get(member);
        member.is_some_and(|member| member.endpoint.has_event(sides))
    })
}

/// The caller's buffer for entries, in the format of the queue.
struct EntryBuffer {
    at: *mut c_void,
    format: c_int,
    count: usize,
    sources: *mut u64,
}

impl EntryBuffer {
    /// # Safety
    ///
    /// There is room for `count` entries of `format`, `at` is below it, and `sources` is null or has as much.
    #[inline]
    unsafe fn write(&self, at: usize, event: &Event) {
        let Event { context, flags, len, buf, data, tag, .. } = *event;
        let entry = CqEntry { op_context: context, flags, len, buf, data, tag };
        let bytes = match self.format {
            FI_CQ_FORMAT_CONTEXT => 8,
            FI_CQ_FORMAT_MSG => 24,
            FI_CQ_FORMAT_DATA => 40,
            _ => size_of::<CqEntry>(),
        };
        // SAFETY: an entry of a shorter format is the beginning of the longest, and so long; there is room for it, as promised.
        unsafe {
            let place = self.at.cast::<u8>().add(at * bytes);
            if bytes == size_of::<CqEntry>() {
                place.cast::<CqEntry>().write_unaligned(entry);
            } else {
                std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), place, bytes);
            }
            if !self.sources.is_null() {
                self.sources.add(at).write(event.source);
            }
        }
    }
}

impl Queue {
    /// Returns the number of records from the daemon that the bound endpoints have received.
    #[inline]
    fn daemon_records(&self, members: &SlotTable<Member>) -> u64 {
        let members = self.sources.iter().filter_map(|(member, _)| members.get(*member));
        members.map(|member| member.endpoint.daemon_records()).sum()
    }

    /// Reads entries. Makes progress first if there are none, or if the caller has no room for any.
    ///
    /// # Safety
    ///
    /// As for [`EntryBuffer::write`].
    #[inline]
    unsafe fn read_entries(&mut self, members: &mut SlotTable<Member>, room: &EntryBuffer) -> Result<usize, Errno> {
        let mut some = false;
        for &(member, sides) in &self.sources {
            let Some(member) = members.get_mut(member) else { continue };
            let endpoint = &mut member.endpoint;
            some |= room.count > 0 && endpoint.has_event(sides)
                || endpoint.progress_unless_skipped() && endpoint.has_event(sides);
        }
        // SAFETY: passed on.
        let taken = if some { unsafe { self.pop_entries(members, room) } } else { Err(Errno::AGAIN) };
        if taken != Err(Errno::AGAIN) {
            let brought = self.daemon_records(members);
            self.idle.on_work(brought);
        }
        taken
    }

    /// Removes entries from the queue. Returns an error if there are none, or if the first one reports an error.
    ///
    /// # Safety
    ///
    /// As for [`EntryBuffer::write`].
    unsafe fn pop_entries(&self, members: &mut SlotTable<Member>, room: &EntryBuffer) -> Result<usize, Errno> {
        let mut taken = 0;
        let sides = [Side::Transmit, Side::Receive];
        for &(member, bound) in &self.sources {
            let Some(member) = members.get_mut(member) else { continue };
            let events = &mut member.endpoint.dispatcher().events;
            for side in sides.into_iter().filter(|side| bound[*side as usize]) {
                let events = events.queue(side);
                while taken < room.count
                    && let Some(event) = events.front()
                {
                    if event.error != 0 {
                        return if taken == 0 { Err(Errno::AVAIL) } else { Ok(taken) };
                    }
                    // SAFETY: passed on; `taken` is below the count.
                    unsafe { room.write(taken, event) };
                    taken += 1;
                    events.pop_front();
                }
            }
        }
        if taken == 0 { Err(Errno::AGAIN) } else { Ok(taken) }
    }
}

unsafe extern "C" fn read(cq: *mut FidCq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: passed on.
    unsafe { readfrom(cq, buf, count, std::ptr::null_mut()) }
}

/// Returns true if a cheap check shows that there is nothing to read: the queue has one endpoint, and the previous read
/// found nothing either. In that case the check has made progress.
#[inline]
fn is_known_empty(state: &mut State, slot: u32) -> bool {
    let State { members, queues, .. } = state;
    let Some(queue) = queues.get_mut(slot) else { return false };
    let [(member, sides)] = *queue.sources.as_slice() else { return false };
    let Some(member) = members.get_mut(member) else { return false };
    let quiet = queue.idle.is_counting() && member.endpoint.is_quiet(sides);
    if quiet {
        queue.idle.count_empty_poll();
    }
    quiet
}

unsafe extern "C" fn readfrom(cq: *mut FidCq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    // SAFETY: a queue of ours.
    let object = unsafe { object(cq) };
    // Programs read repeatedly, and most reads find nothing. This check needs no lock.
    if object.was_empty.load(Ordering::Relaxed) && object.shared.try_inspect(|state| is_known_empty(state, object.slot))
    {
        return -(Errno::AGAIN.0 as isize);
    }
    // SAFETY: passed on.
    let read = unsafe { read_locked(cq, buf, count, sources) };
    object.was_empty.store(read == -(Errno::AGAIN.0 as isize), Ordering::Relaxed);
    read
}

/// # Safety
///
/// The promises of the caller of [`readfrom`].
#[inline(never)]
unsafe fn read_locked(cq: *mut FidCq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    number(|| {
        // SAFETY: a queue of ours.
        let object = unsafe { object(cq) };
        let room = EntryBuffer { at: buf, format: object.format, count, sources };
        let mut state = object.shared.lock();
        let State { members, queues, .. } = &mut *state;
        let queue = queues.get_mut(object.slot).ok_or(Errno::OPBADSTATE)?;
        // SAFETY: the caller has room for `count` entries of the queue's format.
        match unsafe { queue.read_entries(members, &room) } {
            Err(Errno::AGAIN) => match queue.idle.on_empty_poll() {
                Some(limit) if count > 0 => {
                    let mut state = sleep(state, object.slot, limit);
                    // SAFETY: as above.
                    unsafe { read_entries(&mut state, object.slot, &room) }
                }
                _ => Err(Errno::AGAIN),
            },
            taken => taken,
        }
        .map(|taken| taken as isize)
    })
}

/// Like [`Queue::read_entries`].
///
/// # Safety
///
/// As for [`EntryBuffer::write`].
unsafe fn read_entries(state: &mut State, slot: u32, room: &EntryBuffer) -> Result<usize, Errno> {
    let State { members, queues, .. } = state;
    let queue = queues.get_mut(slot).ok_or(Errno::OPBADSTATE)?;
    // SAFETY: passed on.
    unsafe { queue.read_entries(members, room) }
}

/// Sleeps until an entry may be available, for at most `limit`.
fn sleep(mut state: Locked<'_>, slot: u32, limit: Duration) -> Locked<'_> {
    if state.arm_all() && !has_entry(&state, slot) { state.sleep(limit) } else { state }
}

unsafe extern "C" fn readerr(cq: *mut FidCq, entry: *mut CqErrEntry, _flags: u64) -> isize {
    number(|| {
        // SAFETY: a queue of ours.
        let object = unsafe { object(cq) };
        let mut state = object.shared.lock();
        let State { members, queues, .. } = &mut *state;
        let queue = queues.get(object.slot).ok_or(Errno::OPBADSTATE)?;
        for &(member, bound) in &queue.sources {
            let Some(member) = members.get_mut(member) else { continue };
            for side in [Side::Transmit, Side::Receive].into_iter().filter(|side| bound[*side as usize]) {
                if let Some(event) =
                    member.endpoint.dispatcher().events.queue(side).pop_front_if(|event| event.error != 0)
                {
                    // SAFETY: the caller has room for an entry as its version of the API has it.
                    unsafe { write_error(entry, &event, object.shared.api_version) };
                    return Ok(1);
                }
            }
        }
        Err(Errno::AGAIN)
    })
}

/// # Safety
///
/// There is room for an entry as this version has it.
unsafe fn write_error(entry: *mut CqErrEntry, event: &Event, api_version: u32) {
    let Event { context, flags, len, buf, data, tag, source, error, overflow } = *event;
    // SAFETY: as promised. From `SRC_ADDR_API_VERSION` on there is one more field behind.
    unsafe {
        (*entry).op_context = context;
        (*entry).flags = flags;
        (*entry).len = len;
        (*entry).buf = buf;
        (*entry).data = data;
        (*entry).tag = tag;
        (*entry).olen = overflow;
        (*entry).err = error;
        (*entry).prov_errno = error;
        (*entry).err_data_size = 0;
        if api_version >= SRC_ADDR_API_VERSION {
            entry.add(1).cast::<u64>().write(source);
        }
    }
}

unsafe extern "C" fn sread(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: passed on.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    number(|| {
        // SAFETY: a queue of ours.
        let object = unsafe { object(cq) };
        if object.wait == FI_WAIT_NONE {
            return Err(Errno::NOSYS);
        }
        let room = EntryBuffer { at: buf, format: object.format, count, sources };
        let deadline = wait_object::deadline(timeout);
        let begun = Instant::now();
        let mut state = object.shared.lock();
        loop {
            // SAFETY: the caller has room for `count` entries of the queue's format.
            match unsafe { read_entries(&mut state, object.slot, &room) } {
                Err(Errno::AGAIN) => {}
                taken => return taken.map(|taken| taken as isize),
            }
            let queue = state.queues.get_mut(object.slot).ok_or(Errno::OPBADSTATE)?;
            let now = Instant::now();
            if std::mem::take(&mut queue.signalled) || deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Errno::AGAIN);
            }
            if now.duration_since(begun) < SPIN {
                drop(state); // Other threads may wait for the lock.
                state = object.shared.lock();
            } else {
                state = sleep(state, object.slot, wait_object::time_left(deadline));
            }
        }
    })
}

unsafe extern "C" fn signal(cq: *mut FidCq) -> c_int {
    call(|| {
        // SAFETY: a queue of ours.
        let object = unsafe { object(cq) };
        let mut state = object.shared.lock();
        state.queues.get_mut(object.slot).ok_or(Errno::OPBADSTATE)?.signalled = true;
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut FidCq,
    errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: passed on.
    unsafe { text(errno, buf, len) }
}

/// Returns the text for an error code.
///
/// # Safety
///
/// `buf` is null, or there is room for `len` bytes.
pub(crate) unsafe fn text(errno: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    let text = match Errno(errno) {
        Errno::CONNABORTED => c"the peer is gone",
        Errno::HOSTUNREACH => c"the peer cannot be reached",
        Errno::TRUNC => c"the message was longer than the receive",
        Errno::CANCELED => c"the receive was cancelled",
        Errno::NOMSG => c"no such message has arrived",
        Errno::KEYREJECTED => c"no memory is registered under this key",
        Errno::ACCES => c"the memory is not registered for that",
        _ => c"the operation failed",
    };
    if !buf.is_null() && len > 0 {
        let bytes = text.to_bytes();
        let kept = bytes.len().min(len - 1);
        // SAFETY: there is room for `len` bytes, as promised.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), kept);
            buf.add(kept).write(0);
        }
    }
    text.as_ptr()
}

//! `fi_getinfo()`: the offer of the provider, the check of a request against it, and the reply.
//!
//! Libfabric frees each part of the reply with `free()`, so each part is allocated with `calloc()`.

use crate::abi::consts::*;
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::caps::{self, Caps};
use crate::engine::iovecs::IOV_LIMIT;
use crate::engine::name::NAME_BYTES;
use crate::engine::send::INJECT_MAX;
use crate::errno::{Errno, call};
use isthmus_client::{AttachError, Options, QueryClient};
use isthmus_layout::limits::{MESSAGE_BYTES_MAX, SLAB_MESSAGE_BYTES_MAX};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of the daemon's program.
const DAEMON: &str = "isthmusd";

/// The name of the fabric and of the domain.
const NAME: &CStr = crate::provider::NAME;

const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_COMMIT_COMPLETE
    | FI_MORE;
const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV | FI_MORE;

const ORDERS: u64 = FI_ORDER_STRICT | FI_ORDER_RMA_AND_ATOMIC;

/// The provider's own protocol, which no other provider speaks.
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x4953;
const ADDR_FORMAT: u32 = FI_PROV_SPECIFIC | 0x4953;
const PROTOCOL_VERSION: u32 = 1;

/// The tag format: the program may use all bits.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The number of operations that a program may have in progress.
const QUEUE_SIZE: usize = 2048;
/// The number of objects of each kind that the provider reports.
const OBJECTS_MAX: usize = 1024;
const MESSAGE_MAX: usize = MESSAGE_BYTES_MAX as usize;
/// The maximum message size for which operations keep the promised orders. Longer messages may overtake each other.
const ORDER_MAX: usize = SLAB_MESSAGE_BYTES_MAX as usize;

/// The allocated size of the domain attributes. Fields of versions after 1.17 are zero.
const DOMAIN_ATTR_BYTES: usize = 512;

/// Returns the options for attaching: those of the environment, with the daemon that is installed beside this library.
pub(crate) fn options() -> Result<Options, AttachError> {
    let options = Options::from_environment()?;
    Ok(Options { daemon: installed_daemon(), ..options })
}

/// Returns the path of the daemon's program, relative to this library: in its folder, or in `bin` beside its `lib`.
fn installed_daemon() -> Option<PathBuf> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let place = crate::provider::fi_prov_ini as *const c_void;
    // SAFETY: any address may be asked about; the answer is written where there is room for it.
    if unsafe { libc::dladdr(place, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: written, as the answer says; the name is a string of the loader's that outlives us.
    let name = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
    let folder = Path::new(OsStr::from_bytes(name.to_bytes())).parent()?;
    let above = folder.ancestors().skip(1).take(2);
    let places =
        std::iter::once(folder.to_owned()).chain(above.flat_map(|above| [above.to_owned(), above.join("bin")]));
    places.map(|place| place.join(DAEMON)).find(|path| path.is_file())
}

/// The number of attempts to find a daemon.
const TRIES: u32 = 3;

/// Returns true if an endpoint could attach: a daemon responds, or one can be started.
fn is_reachable() -> bool {
    let Ok(options) = options() else { return false };
    // A signal may interrupt an attempt, and a rank without a provider ends its whole job.
    if (0..TRIES).any(|_| QueryClient::connect(&options).is_ok()) {
        return true;
    }
    if options.no_autostart || options.socket.is_some() {
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    options.daemon.is_some() || std::env::split_paths(&path).any(|folder| folder.join(DAEMON).is_file())
}

/// The entry point for libfabric.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    _service: *const c_char,
    flags: u64,
    hints: *const Info,
    infos: *mut *mut Info,
) -> c_int {
    call(|| {
        // Names of hosts are not supported: `fi_getname()` returns the addresses.
        if !node.is_null() && flags & FI_SOURCE_GIVEN == 0 {
            return Err(Errno::NODATA);
        }
        // SAFETY: null, or hints as libfabric has them.
        let hints = unsafe { hints.as_ref() };
        // Before API 1.5, `FI_MR_SCALABLE` is the mode without requirements, and 0 leaves the choice to the provider.
        let mr_mode = if version < self::version(1, 5) { FI_MR_SCALABLE } else { 0 };
        let mut requested = RequestedAttrs { mr_mode, ..RequestedAttrs::default() };
        if let Some(hints) = hints {
            // SAFETY: as above.
            unsafe { requested.read(hints)? };
        }
        if !is_reachable() {
            return Err(Errno::NODATA);
        }
        // SAFETY: writable.
        unsafe { infos.write(answer(&requested)?) };
        Ok(())
    })
}

/// The caller's choice for attributes that the provider leaves to it.
#[derive(Debug, Default)]
struct RequestedAttrs {
    caps: Caps,
    threading: c_int,
    control_progress: c_int,
    data_progress: c_int,
    av_type: c_int,
    mr_mode: c_int,
    tx_flags: u64,
    rx_flags: u64,
}

/// Returns an error unless the `wanted` bits are a subset of `have`.
fn check_subset(wanted: u64, have: u64) -> Result<(), Errno> {
    if wanted & !have == 0 { Ok(()) } else { Err(Errno::NODATA) }
}

fn check_at_most(wanted: usize, have: usize) -> Result<(), Errno> {
    if wanted <= have { Ok(()) } else { Err(Errno::NODATA) }
}

fn check_one_of<T: PartialEq>(wanted: T, have: &[T]) -> Result<(), Errno> {
    if have.contains(&wanted) { Ok(()) } else { Err(Errno::NODATA) }
}

/// # Safety
///
/// `name` is null or a string.
unsafe fn check_name(name: *const c_char) -> Result<(), Errno> {
    // SAFETY: as promised.
    if name.is_null() || unsafe { CStr::from_ptr(name) } == NAME { Ok(()) } else { Err(Errno::NODATA) }
}

impl RequestedAttrs {
    /// # Safety
    ///
    /// The hints are as libfabric has them: each part is null or complete.
    unsafe fn read(&mut self, hints: &Info) -> Result<(), Errno> {
        check_one_of(hints.addr_format, &[FI_FORMAT_UNSPEC, ADDR_FORMAT])?;
        // SAFETY: as promised.
        let (tx, rx, ep, domain, fabric) = unsafe {
            (
                hints.tx_attr.as_ref(),
                hints.rx_attr.as_ref(),
                hints.ep_attr.as_ref(),
                hints.domain_attr.as_ref(),
                hints.fabric_attr.as_ref(),
            )
        };
        self.caps = Caps::requested(hints.caps, tx.map_or(0, |tx| tx.caps), rx.map_or(0, |rx| rx.caps))?;
        tx.map_or(Ok(()), |tx| self.read_tx(tx))?;
        rx.map_or(Ok(()), |rx| self.read_rx(rx))?;
        ep.map_or(Ok(()), read_ep)?;
        // SAFETY: as promised.
        domain.map_or(Ok(()), |domain| unsafe { self.read_domain(domain) })?;
        // SAFETY: as promised.
        fabric.map_or(Ok(()), |fabric| unsafe { check_name(fabric.name) })
    }

    fn read_tx(&mut self, tx: &TxAttr) -> Result<(), Errno> {
        check_subset(tx.op_flags, TX_FLAGS)?;
        check_subset(tx.msg_order, ORDERS)?;
        check_subset(tx.comp_order, 0)?;
        check_at_most(tx.inject_size, INJECT_MAX)?;
        check_at_most(tx.size, QUEUE_SIZE)?;
        check_at_most(tx.iov_limit, IOV_LIMIT)?;
        check_at_most(tx.rma_iov_limit, 1)?;
        self.tx_flags = tx.op_flags;
        Ok(())
    }

    fn read_rx(&mut self, rx: &RxAttr) -> Result<(), Errno> {
        check_subset(rx.op_flags, RX_FLAGS)?;
        check_subset(rx.msg_order, ORDERS)?;
        check_subset(rx.comp_order, 0)?;
        check_at_most(rx.size, QUEUE_SIZE)?;
        check_at_most(rx.iov_limit, IOV_LIMIT)?;
        self.rx_flags = rx.op_flags;
        Ok(())
    }

    /// # Safety
    ///
    /// The name is null or a string.
    unsafe fn read_domain(&mut self, domain: &DomainAttr) -> Result<(), Errno> {
        // SAFETY: as promised.
        unsafe { check_name(domain.name)? };
        // Progress is made only inside calls.
        check_one_of(domain.data_progress, &[FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL])?;
        check_one_of(domain.control_progress, &[FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL])?;
        check_subset(domain.caps, caps::DOMAIN)?;
        if domain.mr_mode == FI_MR_BASIC {
            return Err(Errno::NODATA);
        }
        check_at_most(domain.mr_key_size, size_of::<u64>())?;
        check_at_most(domain.cq_data_size, size_of::<u64>())?;
        check_at_most(domain.max_ep_tx_ctx, 1)?;
        check_at_most(domain.max_ep_rx_ctx, 1)?;
        check_at_most(domain.max_ep_stx_ctx, 0)?;
        check_at_most(domain.max_ep_srx_ctx, 0)?;
        check_at_most(domain.mr_iov_limit, 1)?;
        (self.threading, self.av_type) = (domain.threading, domain.av_type);
        (self.control_progress, self.data_progress) = (domain.control_progress, domain.data_progress);
        // The provider requires none of the mode bits of API 1.5 and later.
        if domain.mr_mode == FI_MR_SCALABLE {
            self.mr_mode = FI_MR_SCALABLE;
        }
        Ok(())
    }
}

fn read_ep(ep: &EpAttr) -> Result<(), Errno> {
    check_one_of(ep.kind, &[FI_EP_UNSPEC, FI_EP_RDM])?;
    check_one_of(ep.protocol, &[0, PROTOCOL])?;
    check_at_most(ep.max_msg_size, MESSAGE_MAX)?;
    check_at_most(ep.msg_prefix_size, 0)?;
    check_at_most(ep.max_order_raw_size, ORDER_MAX)?;
    check_at_most(ep.max_order_war_size, ORDER_MAX)?;
    check_at_most(ep.max_order_waw_size, ORDER_MAX)?;
    check_at_most(ep.tx_ctx_cnt, 1)?;
    check_at_most(ep.rx_ctx_cnt, 1)
}

/// Allocates zeroed memory that `free()` releases.
fn zeroed<T>(bytes: usize) -> Result<*mut T, Errno> {
    // SAFETY: any size may be asked for.
    let memory = unsafe { libc::calloc(1, bytes) };
    if memory.is_null() { Err(Errno::NOMEM) } else { Ok(memory.cast()) }
}

/// Allocates a value that `free()` releases.
fn boxed<T>(value: T) -> Result<*mut T, Errno> {
    let place = zeroed::<T>(size_of::<T>())?;
    // SAFETY: there is room, aligned for anything.
    unsafe { place.write(value) };
    Ok(place)
}

fn named() -> Result<*mut c_char, Errno> {
    let bytes = NAME.to_bytes_with_nul();
    let place = zeroed::<u8>(bytes.len())?;
    // SAFETY: there is room for as many.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    Ok(place.cast())
}

/// Builds the reply. If memory runs out half-way, the parts allocated before are leaked.
fn answer(requested: &RequestedAttrs) -> Result<*mut Info, Errno> {
    let fabric = FabricAttr {
        fabric: std::ptr::null_mut(),
        name: named()?,
        // Libfabric writes its own name.
        prov_name: std::ptr::null_mut(),
        prov_version: 0,
        api_version: 0,
    };
    let info = Info {
        next: std::ptr::null_mut(),
        caps: requested.caps.endpoint,
        mode: 0,
        addr_format: ADDR_FORMAT,
        src_addrlen: NAME_BYTES,
        dest_addrlen: 0,
        src_addr: zeroed(NAME_BYTES)?,
        dest_addr: std::ptr::null_mut(),
        handle: std::ptr::null_mut(),
        tx_attr: boxed(tx_attr(requested))?,
        rx_attr: boxed(rx_attr(requested))?,
        ep_attr: boxed(ep_attr())?,
        domain_attr: domain_attr(requested)?,
        fabric_attr: boxed(fabric)?,
        nic: std::ptr::null_mut(),
    };
    boxed(info)
}

fn tx_attr(requested: &RequestedAttrs) -> TxAttr {
    TxAttr {
        caps: requested.caps.tx,
        mode: 0,
        op_flags: requested.tx_flags,
        msg_order: ORDERS,
        comp_order: 0,
        inject_size: INJECT_MAX,
        size: QUEUE_SIZE,
        iov_limit: IOV_LIMIT,
        rma_iov_limit: 1,
        tclass: FI_TC_UNSPEC,
    }
}

fn rx_attr(requested: &RequestedAttrs) -> RxAttr {
    RxAttr {
        caps: requested.caps.rx,
        mode: 0,
        op_flags: requested.rx_flags,
        msg_order: ORDERS,
        comp_order: 0,
        total_buffered_recv: 0,
        size: QUEUE_SIZE,
        iov_limit: IOV_LIMIT,
    }
}

fn ep_attr() -> EpAttr {
    EpAttr {
        kind: FI_EP_RDM,
        protocol: PROTOCOL,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: MESSAGE_MAX,
        msg_prefix_size: 0,
        max_order_raw_size: ORDER_MAX,
        max_order_war_size: ORDER_MAX,
        max_order_waw_size: ORDER_MAX,
        mem_tag_format: TAG_FORMAT,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    }
}

fn domain_attr(requested: &RequestedAttrs) -> Result<*mut DomainAttr, Errno> {
    let or = |wish: c_int, otherwise: c_int| if wish == 0 { otherwise } else { wish };
    const _: () = assert!(FI_THREAD_UNSPEC == 0 && FI_PROGRESS_UNSPEC == 0);
    let attr = DomainAttr {
        domain: std::ptr::null_mut(),
        name: named()?,
        threading: or(requested.threading, FI_THREAD_DOMAIN),
        control_progress: or(requested.control_progress, FI_PROGRESS_MANUAL),
        data_progress: or(requested.data_progress, FI_PROGRESS_MANUAL),
        resource_mgmt: FI_RM_ENABLED,
        av_type: requested.av_type,
        mr_mode: requested.mr_mode,
        mr_key_size: size_of::<u64>(),
        cq_data_size: size_of::<u64>(),
        cq_cnt: OBJECTS_MAX,
        ep_cnt: OBJECTS_MAX,
        tx_ctx_cnt: OBJECTS_MAX,
        rx_ctx_cnt: OBJECTS_MAX,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: 0,
        cntr_cnt: OBJECTS_MAX,
        mr_iov_limit: 1,
        caps: caps::DOMAIN,
        mode: 0,
        auth_key: std::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: 0,
        mr_cnt: usize::from(u16::MAX),
        tclass: FI_TC_UNSPEC,
    };
    const _: () = assert!(size_of::<DomainAttr>() <= DOMAIN_ATTR_BYTES);
    let place = zeroed::<DomainAttr>(DOMAIN_ATTR_BYTES)?;
    // SAFETY: there is room, aligned for anything.
    unsafe { place.write(attr) };
    Ok(place)
}

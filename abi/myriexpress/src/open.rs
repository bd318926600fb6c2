//! Opening and closing endpoints.

use crate::codes::Return;
use crate::endpoint::{Endpoint, MxAddress};
use crate::environment::Settings;
use crate::errors::{Failure, call};
use crate::matcher::{INDEX, MxMatcher};
use crate::table::{self, ReservedSlot};
use crate::types::{EndpointHandle, ErrorHandler, MxEndpointAddr, Parameter};
use crate::{delivery, handler, library};
use isthmus_client::{AttachError, Domain, EndpointAddress, Options, Reason, WaitMode};
use isthmus_mx::ContextIdBits;
use rustix::thread::CpuSet;
use std::time::{Duration, Instant};

/// `MX_ANY_NIC` and `MX_ANY_ENDPOINT`.
const ANY: u32 = u32::MAX;

/// The time in which pending messages may leave when an endpoint is closed.
const LINGER: Duration = Duration::from_millis(250);

/// The values of an `mx_param_t` list.
#[derive(Default)]
struct Parameters {
    error_handler: Option<ErrorHandler>,
    contexts: Option<ContextIdBits>,
}

impl Parameters {
    /// # Safety
    ///
    /// `list` is null, or `count` parameters can be read there.
    unsafe fn read(list: *const Parameter, count: u32) -> Result<Self, Failure> {
        let mut read = Self::default();
        if count == 0 {
            return Ok(read);
        }
        if list.is_null() {
            return Err(Return::BAD_PARAM_LIST.into());
        }
        // SAFETY: not null, so readable as promised.
        for parameter in unsafe { std::slice::from_raw_parts(list, count as usize) } {
            match parameter.key {
                // SAFETY: the key selects the field of the union. All fields are plain numbers or functions of the
                // program.
                0 => read.error_handler = unsafe { parameter.val.error_handler },
                1 => {} // The queue has no fixed limit.
                2 => {
                    // SAFETY: as above.
                    let id = unsafe { parameter.val.context_id };
                    read.contexts = Some(ContextIdBits::new(id.bits, id.shift).map_err(|_| Return::BAD_PARAM_VAL)?);
                }
                _ => return Err(Return::BAD_PARAM_NAME.into()),
            }
        }
        Ok(read)
    }
}

/// Opens an endpoint.
///
/// # Safety
///
/// `parameters` is null, or `parameters_count` of them can be read there. `endpoint` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_open_endpoint(
    board_number: u32,
    endpoint_id: u32,
    key: u32,
    parameters: *const Parameter,
    parameters_count: u32,
    endpoint: *mut EndpointHandle,
) -> Return {
    call("mx_open_endpoint", 0, || {
        if endpoint.is_null() {
            return Err(Return::BAD_ENDPOINT.into());
        }
        // SAFETY: as the caller promised.
        let parameters = unsafe { Parameters::read(parameters, parameters_count)? };
        let handle = open(board_number, endpoint_id, key, &parameters)?;
        // SAFETY: not null, so writable by the caller's promise.
        unsafe { endpoint.write(handle) };
        Ok(())
    })
}

fn open(board: u32, number: u32, key: u32, parameters: &Parameters) -> Result<EndpointHandle, Failure> {
    library::begin()?;
    let settings = Settings::of_process();
    let place = ReservedSlot::new()?;
    let from_environment = settings.contexts.and_then(|(bits, shift)| ContextIdBits::new(bits, shift).ok());
    let contexts = parameters.contexts.or(from_environment).unwrap_or(ContextIdBits::NONE);
    let number = if number == ANY { settings.any_endpoint } else { Some(number) };
    let options = options(settings)?;
    let mut domain = attach(&options, contexts)?;
    domain.open(Some(INDEX), "mx")?;
    let claimed = domain.mx_open((board != ANY).then_some(board), number, key, INDEX);
    let claimed = claimed.map_err(|refusal| match refusal.reason {
        Reason::MxEndpointOutOfRange => Return::BAD_ENDPOINT.into(),
        _ => Failure::from(refusal),
    })?;
    let address = EndpointAddress { domain: domain.id(), endpoint: INDEX };
    let own = domain.matcher_mut().engine.partner(address).map_err(|_| Return::NO_RESOURCES)?;
    let at = MxAddress { nic: claimed.nic, number: claimed.endpoint };
    let opened = Endpoint::new(domain, settings, claimed.board, at, own, &options);
    let opened = opened.map_err(|_| Return::NO_RESOURCES)?;
    settings.binding.as_deref().into_iter().for_each(|binding| bind(binding, claimed.endpoint));
    place.fill(Box::new(opened), parameters.error_handler)
}

/// Attaches to the daemon. Only the first endpoint of the process gets a name that the environment sets.
fn attach(options: &Options, contexts: ContextIdBits) -> Result<Domain<MxMatcher>, Failure> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).map_err(|_| Return::NO_RESOURCES)?;
    let matcher = || MxMatcher::new(contexts, u64::from_ne_bytes(seed));
    match Domain::attach_matching(options, matcher()) {
        Err(error) if error.reason() == Some(Reason::NameTaken) => {
            let nameless = Options { name: None, ..options.clone() };
            Ok(Domain::attach_matching(&nameless, matcher())?)
        }
        attached => Ok(attached?),
    }
}

fn options(settings: &Settings) -> Result<Options, Failure> {
    let mut options = Options::from_environment().map_err(AttachError::from)?;
    options.no_regcache |= !settings.rcache;
    options.regcache_in_guests |= settings.rcache_forced;
    options.no_channels |= settings.no_channels;
    if settings.wait_spins {
        options.wait = WaitMode::Spin;
    }
    Ok(options)
}

/// Binds the process as `OMX_PROCESS_BINDING` says: `all:CPU`, or a CPU for each endpoint number, separated by commas.
fn bind(binding: &str, endpoint: u32) {
    let cpu = match binding.strip_prefix("all:") {
        Some(cpu) => cpu.parse().ok(),
        None => binding.split(',').nth(endpoint as usize).and_then(|cpu| cpu.parse().ok()),
    };
    if let Some(cpu) = cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        let mut set = CpuSet::new();
        set.set(cpu);
        // If this is not permitted, the process keeps its affinity.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Closes an endpoint. Waits for the receivers of copied sends; all other requests are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn mx_close_endpoint(endpoint: EndpointHandle) -> Return {
    call("mx_close_endpoint", endpoint, || close(endpoint, Instant::now()))
}

fn close(endpoint: EndpointHandle, begun: Instant) -> Result<(), Failure> {
    let mut locked = handler::lock_to_close(endpoint)?;
    locked.matcher().end();
    locked.wake_all();
    if let Some(mut closed) = locked.take() {
        delivery::finish(&mut closed, begun);
        closed.domain.leave(LINGER, |_| {});
    }
    Ok(())
}

/// Closes all open endpoints, so that their peers are notified. Errors are ignored, because no caller could act on them.
pub(crate) fn close_all() {
    let begun = Instant::now();
    for endpoint in table::handles() {
        let _ = close(endpoint, begun);
    }
}

/// Ends the waits of all threads that are blocked on the endpoint.
#[unsafe(no_mangle)]
pub extern "C" fn mx_wakeup(endpoint: EndpointHandle) -> Return {
    call("mx_wakeup", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        locked.wakeups += 1;
        locked.wake_all();
        Ok(())
    })
}

/// Returns the endpoint's own address.
///
/// # Safety
///
/// `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_endpoint_addr(endpoint: EndpointHandle, address: *mut MxEndpointAddr) -> Return {
    call("mx_get_endpoint_addr", endpoint, || {
        let locked = table::lock(endpoint)?;
        let own = MxEndpointAddr { stuff: [endpoint as u64, locked.own.to_bits()] };
        // SAFETY: null or writable by the caller's promise.
        unsafe { crate::boards::put(address, own) }
    })
}

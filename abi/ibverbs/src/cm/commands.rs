//! The commands of librdmacm.
//!
//! Errors are those of the kernel: `ENOENT` for an identifier that the channel does not have, `EINVAL` for a state or an argument that does
//! not fit, `ENOSYS` for a command that there is not.

use super::device::Device;
use super::{NEVER, Service, lock, now, packet_info};
use crate::abi::cm::*;
use crate::attributes::PORT;
use crate::device::set_errno;
use isthmus_verbs::cm::{ChannelNumber, End, Event, IdNumber, Parameters, PortSpace, PrivateData, Refusal, UDP_QKEY};
use isthmus_verbs::{Access, AttributeMask, Gid, QpState};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::Ordering;

unsafe extern "C-unwind" {
    /// A point of cancellation, as the program's `write()` is one.
    fn recv(fd: c_int, into: *mut c_void, len: usize, flags: c_int) -> isize;
}

/// `IBV_MTU_4096`
const MTU_4096: u32 = 5;

/// The rate of four lanes of 25 Gbit/s, as paths have it: `IBV_RATE_100_GBPS`.
const RATE_100_GBPS: u8 = 16;

/// A value that the path has exactly.
const EXACTLY: u8 = 2;

const PKEY_DEFAULT: u16 = 0xffff;
const HOPS: u8 = 64;

/// The time-out of acknowledgements, of the interface's codes.
const ACK_TIMEOUT: u8 = 14;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self(match refusal {
            Refusal::NoSuchId => Errno::NOENT,
            Refusal::Invalid => Errno::INVAL,
        })
    }
}

/// Why a command fails.
#[derive(Clone, Copy, Debug)]
struct Error(Errno);

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Done,
    /// There is no event yet.
    Wait,
}

/// Carries a command out. False if the descriptor is no channel.
///
/// # Safety
///
/// As for `write()`: the bytes can be read. Pointers in a command lead to as much memory as it says.
pub(super) unsafe extern "C-unwind" fn command(fd: c_int, from: *const c_void, len: usize, result: *mut isize) -> bool {
    let mut first = None;
    loop {
        // SAFETY: by the caller's promise.
        let begun = unsafe { begin(fd, from.cast(), len, first) };
        let end = match (begun, first) {
            (Some((channel, end)), _) => {
                first = Some(channel);
                end
            }
            (None, None) => return false,
            // Another thread has closed the channel while this one waited. The descriptor may be any file now. As in the kernel, the thread
            // sleeps on.
            (None, Some(_)) => {
                let never = NEVER.load(Ordering::Acquire);
                let mut byte = 0_u8;
                // SAFETY: one byte on the stack. Nothing is held here, as above.
                let slept = unsafe { recv(never, (&raw mut byte).cast(), 1, 0) };
                // SAFETY: by the caller's promise.
                unsafe { result.write(slept) };
                return true;
            }
        };
        let done = match end {
            Ok(Ended::Done) => len.cast_signed(),
            Ok(Ended::Wait) => {
                let mut byte = 0_u8;
                // Nothing is held here, so a signal handler may jump out, and the thread may be cancelled.
                // SAFETY: one byte on the stack, which stays in the socket.
                if unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } >= 0 {
                    continue;
                }
                -1 // With the error number of `recv()`: a signal, or what the program did to the descriptor.
            }
            Err(Error(errno)) => {
                set_errno(errno);
                -1
            }
        };
        // SAFETY: by the caller's promise.
        unsafe { result.write(done) };
        return true;
    }
}

/// Carries a command out, except for the wait, and returns its channel. None if the descriptor is no channel, or not that one.
///
/// # Safety
///
/// As for [`command()`].
unsafe fn begin(
    fd: c_int,
    from: *const u8,
    len: usize,
    expected: Option<ChannelNumber>,
) -> Option<(ChannelNumber, Result<Ended, Error>)> {
    let mut guard = lock();
    let service = guard.as_mut()?;
    let channel = service.channel_of(fd).filter(|channel| expected.is_none_or(|expected| expected == *channel))?;
    service.channels.entry(channel).and_modify(|known| known.program = fd);
    service.manager.set_time(now());
    if from.is_null() {
        return Some((channel, Err(Errno::FAULT.into())));
    }
    // SAFETY: by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(from, len) };
    let ended = Call::new(bytes).and_then(|call| service.execute(channel, &call));
    service.perform();
    Some((channel, ended))
}

/// A command as the program has written it.
struct Call<'a> {
    header: Header,
    body: &'a [u8],
}

impl<'a> Call<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let head = bytes.first_chunk::<{ size_of::<Header>() }>().ok_or(Errno::INVAL)?;
        // SAFETY: any bytes are a header.
        let header: Header = unsafe { head.as_ptr().cast::<Header>().read_unaligned() };
        let body = bytes.get(size_of::<Header>()..).unwrap_or_default();
        if body.len() < usize::from(header.given) {
            return Err(Errno::INVAL.into());
        }
        Ok(Self { header, body })
    }

    /// The body of the command.
    ///
    /// # Safety
    ///
    /// Any bytes are a `T`.
    unsafe fn body<T: Copy>(&self) -> Result<T, Error> {
        let bytes = self.body.get(..size_of::<T>()).ok_or(Errno::INVAL)?;
        // SAFETY: as many bytes as needed; by the caller's promise.
        Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// Writes a result to where the command wants it, as much as it has room for.
    fn respond<T: Copy>(&self, to: u64, result: &T) -> Result<(), Error> {
        let len = size_of::<T>().min(usize::from(self.header.wanted));
        let place = to as *mut u8;
        if place.is_null() {
            return Err(Errno::FAULT.into());
        }
        // SAFETY: the program has room for that many bytes at the address that it gives, as for the kernel.
        unsafe { std::ptr::copy_nonoverlapping((&raw const *result).cast::<u8>(), place, len) };
        Ok(())
    }
}

impl Service {
    fn execute(&mut self, channel: ChannelNumber, call: &Call<'_>) -> Result<Ended, Error> {
        // SAFETY: all bodies consist of integers.
        unsafe {
            match call.header.command {
                command::CREATE_ID => self.create_id(channel, call, &call.body()?)?,
                command::DESTROY_ID => {
                    let body: DestroyId = call.body()?;
                    let events = self.manager.destroy(channel, IdNumber(body.id))?;
                    call.respond(body.response, &events)?;
                }
                command::BIND_IP => {
                    let body: BindIp = call.body()?;
                    let id = IdNumber(body.id);
                    let space = self.manager.may_bind(channel, id)?;
                    self.bind(id, space, socket_address(&body.address)?.ok_or(Errno::INVAL)?)?;
                }
                command::RESOLVE_IP => self.resolve_ip(channel, &call.body()?)?,
                command::RESOLVE_ROUTE => {
                    self.manager.resolve_route(channel, IdNumber(call.body::<ResolveRoute>()?.id))?;
                }
                command::QUERY_ROUTE => {
                    let body: Query = call.body()?;
                    call.respond(body.response, &self.route(channel, IdNumber(body.id))?)?;
                }
                command::CONNECT => {
                    let body: Connect = call.body()?;
                    self.manager.connect(channel, IdNumber(body.id), parameters(&body.parameters)?)?;
                }
                command::LISTEN => self.start_listening(channel, &call.body()?)?,
                command::ACCEPT => {
                    let body: Accept = call.body()?;
                    self.manager.accept(channel, IdNumber(body.id), body.uid, parameters(&body.parameters)?)?;
                }
                command::REJECT => {
                    let body: Reject = call.body()?;
                    let private = private_data(&body.private_data, body.private_data_len)?;
                    self.manager.reject(channel, IdNumber(body.id), u16::from(body.reason), private)?;
                }
                command::DISCONNECT => self.manager.disconnect(channel, IdNumber(call.body()?))?,
                command::INIT_QP_ATTR => {
                    let body: InitQpAttr = call.body()?;
                    call.respond(body.response, &self.qp_attr(channel, IdNumber(body.id), body.state)?)?;
                }
                command::GET_EVENT => return self.get_event(channel, call),
                command::SET_OPTION => self.set_option(channel, &call.body()?)?,
                command::NOTIFY => {
                    let body: Notify = call.body()?;
                    if body.event == COMMUNICATION_ESTABLISHED {
                        self.manager.communication_established(channel, IdNumber(body.id))?;
                    }
                }
                command::MIGRATE_ID => {
                    let body: MigrateId = call.body()?;
                    let from = self.channel_of(body.fd.cast_signed()).ok_or(Errno::INVAL)?;
                    let events = self.manager.migrate(from, channel, IdNumber(body.id))?;
                    call.respond(body.response, &events)?;
                }
                command::JOIN_IP_MCAST | command::JOIN_MCAST | command::LEAVE_MCAST => {
                    return Err(Errno::OPNOTSUPP.into());
                }
                // librdmacm tries addresses of InfiniBand first, and then uses the commands for those of IP.
                command::BIND | command::RESOLVE_ADDR => return Err(Errno::AFNOSUPPORT.into()),
                _ => return Err(Errno::NOSYS.into()),
            }
        }
        Ok(Ended::Done)
    }

    fn create_id(&mut self, channel: ChannelNumber, call: &Call<'_>, body: &CreateId) -> Result<(), Error> {
        let space = match body.space {
            SPACE_TCP | SPACE_IB => PortSpace::Tcp,
            SPACE_UDP => PortSpace::Udp,
            SPACE_IPOIB => return Err(Errno::PROTONOSUPPORT.into()),
            _ => return Err(Errno::INVAL.into()),
        };
        let id = self.manager.create(channel, body.uid, space);
        call.respond(body.response, &id.0)
    }

    fn resolve_ip(&mut self, channel: ChannelNumber, body: &ResolveIp) -> Result<(), Error> {
        let id = IdNumber(body.id);
        let bound = self.manager.may_resolve(channel, id)?;
        let destination = socket_address(&body.destination)?.ok_or(Errno::INVAL)?;
        let source = socket_address(&body.source)?;
        if bound.is_some() && source.is_some() {
            return Err(Errno::INVAL.into());
        }
        match (self.resolve(id, source, destination), source) {
            (Ok(path), _) => self.manager.resolved(id, Ok(path)),
            // The source is checked at once, the destination by an event.
            (Err(errno @ (Errno::ADDRINUSE | Errno::ADDRNOTAVAIL | Errno::ACCESS)), Some(_)) => {
                return Err(errno.into());
            }
            (Err(errno), _) => self.manager.resolved(id, Err(-errno.raw_os_error())),
        }
        Ok(())
    }

    fn start_listening(&mut self, channel: ChannelNumber, body: &Listen) -> Result<(), Error> {
        let id = IdNumber(body.id);
        let (space, is_bound) = self.manager.may_listen(channel, id)?;
        if !is_bound {
            self.bind(id, space, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        self.listen(id)?;
        self.manager.listen(id, body.backlog);
        Ok(())
    }

    fn set_option(&mut self, channel: ChannelNumber, body: &SetOption) -> Result<(), Error> {
        let id = IdNumber(body.id);
        self.manager.path(channel, id)?;
        if body.level != LEVEL_ID {
            return Err(Errno::NOSYS.into());
        }
        match body.name {
            OPTION_AFONLY if body.len == size_of::<c_int>() as u32 && body.value != 0 => {
                self.manager.may_bind(channel, id)?;
                // SAFETY: the program says that the value is there, with this size.
                let only = unsafe { (body.value as *const c_int).read_unaligned() } != 0;
                self.sockets.entry(id).or_default().only_family = only;
                Ok(())
            }
            // Ports of connections are free as soon as their listener is gone, and there is no network between the ends.
            OPTION_REUSEADDR | OPTION_TOS | OPTION_ACK_TIMEOUT => Ok(()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn route(&self, channel: ChannelNumber, id: IdNumber) -> Result<Route, Error> {
        let (source, destination, is_routed) = self.manager.path(channel, id)?;
        let gid = |end: Option<End>| end.and_then(|end| end.gid).unwrap_or_default();
        // SAFETY: integers may be zero.
        let mut route: Route = unsafe { std::mem::zeroed() };
        source.into_iter().for_each(|end| route.source = raw_address(end.address));
        destination.into_iter().for_each(|end| route.destination = raw_address(end.address));
        if source.is_none_or(|end| end.gid.is_none()) {
            return Ok(route);
        }
        route.node_guid = Device::find().map_or(0, |device| device.guid);
        route.port = PORT;
        route.num_paths = u32::from(is_routed);
        let path = &mut route.paths[0];
        (path.dgid, path.sgid) = (gid(destination).0, gid(source).0);
        path.pkey = PKEY_DEFAULT.to_be();
        (path.hop_limit, path.reversible, path.numb_path) = (HOPS, 1, 1);
        (path.mtu_selector, path.mtu) = (EXACTLY, MTU_4096);
        (path.rate_selector, path.rate) = (EXACTLY, RATE_100_GBPS);
        (path.packet_life_time_selector, path.packet_life_time) = (EXACTLY, ACK_TIMEOUT);
        Ok(route)
    }

    /// The address of a peer, from this identifier's device.
    fn handle_to(&self, gid: Gid, id: Option<Gid>) -> AddressHandle {
        let index = Device::find().map_or(0, |device| device.index_of(id.unwrap_or_default()));
        // SAFETY: integers may be zero.
        let mut handle: AddressHandle = unsafe { std::mem::zeroed() };
        (handle.dgid, handle.sgid_index, handle.hop_limit) = (gid.0, index, HOPS);
        (handle.is_global, handle.port) = (1, PORT);
        handle
    }

    fn qp_attr(&self, channel: ChannelNumber, id: IdNumber, state: u32) -> Result<QpAttr, Error> {
        let (source, _, _) = self.manager.path(channel, id)?;
        let own = source.and_then(|end| end.gid).ok_or(Errno::INVAL)?;
        // SAFETY: integers may be zero.
        let mut attr: QpAttr = unsafe { std::mem::zeroed() };
        (attr.state, attr.port) = (state, PORT);
        use AttributeMask as Mask;
        let state = QpState::from_code(state).ok_or(Errno::INVAL)?;
        if self.manager.space(id) == Some(PortSpace::Udp) {
            let mask = match state {
                QpState::Init => Mask::STATE | Mask::P_KEY_INDEX | Mask::PORT | Mask::Q_KEY,
                QpState::ReadyToReceive => Mask::STATE,
                QpState::ReadyToSend => Mask::STATE | Mask::SEND_PSN,
                _ => return Err(Errno::INVAL.into()),
            };
            (attr.mask, attr.qkey) = (mask.bits(), UDP_QKEY);
            return Ok(attr);
        }
        let transition = self.manager.transition(channel, id, state != QpState::Init)?;
        let mask = match state {
            QpState::Init => Mask::STATE | Mask::P_KEY_INDEX | Mask::PORT | Mask::ACCESS,
            QpState::ReadyToReceive => {
                let path = Mask::ADDRESS | Mask::PATH_MTU | Mask::DESTINATION | Mask::RECEIVE_PSN;
                Mask::STATE | path | Mask::READS_SERVED_MAX | Mask::RNR_TIMER
            }
            QpState::ReadyToSend => {
                let retries = Mask::TIMEOUT | Mask::RETRY_COUNT | Mask::RNR_RETRY;
                Mask::STATE | Mask::SEND_PSN | retries | Mask::READS_MAX
            }
            _ => return Err(Errno::INVAL.into()),
        };
        let mut access = Access::empty();
        access.set(Access::REMOTE_WRITE, transition.lets_write);
        access.set(Access::REMOTE_READ | Access::REMOTE_ATOMIC, transition.lets_read);
        (attr.mask, attr.access) = (mask.bits(), access.bits());
        attr.address = self.handle_to(transition.gid, Some(own));
        (attr.path_mtu, attr.destination) = (MTU_4096, transition.destination);
        (attr.rq_psn, attr.sq_psn) = (transition.receive_psn, transition.send_psn);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (transition.initiator_depth, transition.responder_resources);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (ACK_TIMEOUT, transition.retries, transition.receiver_retries);
        Ok(attr)
    }

    fn get_event(&mut self, channel: ChannelNumber, call: &Call<'_>) -> Result<Ended, Error> {
        // SAFETY: a number.
        let response: u64 = unsafe { call.body()? };
        if usize::from(call.header.wanted) < size_of::<EventResponse>() {
            return Err(Errno::NOSYS.into());
        }
        let Some(event) = self.manager.next_event(channel) else {
            let is_blocking = self.channels.get(&channel).is_some_and(super::Channel::is_blocking);
            return if is_blocking { Ok(Ended::Wait) } else { Err(Errno::AGAIN.into()) };
        };
        call.respond(response, &self.event(&event))?;
        Ok(Ended::Done)
    }

    fn event(&self, event: &Event) -> EventResponse {
        // SAFETY: integers may be zero.
        let mut response: EventResponse = unsafe { std::mem::zeroed() };
        (response.uid, response.id) = (event.uid, event.id.0);
        (response.event, response.status) = (event.kind as u32, event.status.cast_unsigned());
        let given = &event.parameters;
        let private = given.private.as_slice();
        let mut private_data = [0; 256];
        private_data[..private.len()].copy_from_slice(private);
        let private_data_len = private.len() as u8;
        response.parameters = match event.space {
            PortSpace::Tcp => EventParameters {
                connection: ConnectionParameters {
                    qp: given.qp,
                    qkey: given.qkey,
                    private_data,
                    private_data_len,
                    srq: given.srq.into(),
                    responder_resources: given.responder_resources,
                    initiator_depth: given.initiator_depth,
                    flow_control: given.flow_control.into(),
                    retry_count: given.retries,
                    rnr_retry_count: given.receiver_retries,
                    valid: 0,
                },
            },
            PortSpace::Udp => EventParameters {
                datagrams: DatagramParameters {
                    qp: given.qp,
                    qkey: given.qkey,
                    address: self.handle_to(event.gid, self.manager.source_gid(event.id)),
                    private_data,
                    private_data_len,
                    reserved: [0; 7],
                },
            },
        };
        response
    }
}

fn parameters(given: &ConnectionParameters) -> Result<Parameters, Error> {
    Ok(Parameters {
        qp: given.qp,
        qkey: given.qkey,
        responder_resources: given.responder_resources,
        initiator_depth: given.initiator_depth,
        flow_control: given.flow_control != 0,
        retries: given.retry_count.min(7),
        receiver_retries: given.rnr_retry_count.min(7),
        srq: given.srq != 0,
        private: private_data(&given.private_data, given.private_data_len)?,
    })
}

fn private_data(bytes: &[u8; 256], len: u8) -> Result<PrivateData, Error> {
    Ok(PrivateData::new(&bytes[..usize::from(len)]).ok_or(Errno::INVAL)?)
}

/// Reads an address. None if it has no family, as a source has that the program does not choose.
fn socket_address(raw: &SocketAddress) -> Result<Option<SocketAddr>, Error> {
    let word = |at: usize| [raw[at], raw[at + 1], raw[at + 2], raw[at + 3]];
    let family = c_int::from(u16::from_ne_bytes([raw[0], raw[1]]));
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    match family {
        0 => Ok(None),
        libc::AF_INET => Ok(Some(SocketAddr::new(Ipv4Addr::from(word(4)).into(), port))),
        libc::AF_INET6 => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&raw[8..24]);
            let (flow, scope) = (u32::from_ne_bytes(word(4)), u32::from_ne_bytes(word(24)));
            Ok(Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope))))
        }
        _ => Err(Errno::AFNOSUPPORT.into()),
    }
}

fn raw_address(address: SocketAddr) -> SocketAddress {
    // SAFETY: zeroes are valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    packet_info::fill(&mut name, address);
    let mut raw = [0; size_of::<SocketAddress>()];
    // SAFETY: the storage is longer.
    unsafe { std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), raw.as_mut_ptr(), raw.len()) };
    raw
}

//! Sends from the domain to other hosts, and the storage of a message's bytes until the send is over.

use crate::outgoing_stream::OutgoingStream;
use crate::remote_peers::{Assembling, RemotePeer, RemotePeerIndex};
use crate::{LocalPeer, MxTransport, TransportViolation};
use isthmus_layout::limits::{DAEMON_PATH_RECORD_COST, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{MappablePages, ReceiveOutcome, Record, Serial};
use isthmus_mx::net::{PayloadRange, SendId, SendMode, Time};
use isthmus_shm::Gather;
use isthmus_shm::regcache::PeerRegion;
use std::sync::Arc;

/// The cost of an endpoint's unacknowledged messages at which credit is held back.
pub const UNACKED_BYTES_MAX: u32 = 16 << 20;

/// The cost of unacknowledged messages to one remote peer at which credit is held back: no more than the link takes at a time.
const PEER_BYTES_MAX: u32 = 1 << 20;

/// The maximum kept bytes of messages in the domain's memory, which are their ends. Beyond it all of a message comes in fragments.
const EDGES_BYTES_MAX: usize = 4 << 20;

/// The maximum number of messages of one endpoint that are fetched from its domain at a time.
pub const STREAMS_MAX: usize = 16;

/// The number of blocks kept after later ones were asked for. A peer asks for four at a time, and again for lost ones.
const RETAINED_BLOCKS: u32 = 8;

/// A message of the domain that is not over.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) to: RemotePeerIndex,
    /// The cost of the message until it is acknowledged. 0 for an announced message, because its peer may let it wait while other
    /// messages need the credit.
    cost: u32,
    bytes: PayloadSource,
}

#[derive(Debug)]
enum PayloadSource {
    /// All bytes are in this buffer.
    Buffered(Vec<u8>),
    /// The bytes are in memory of the domain, except for the ends.
    Mapped { serial: Serial, region: Arc<PeerRegion>, offset: u64, head: Vec<u8>, body: u32, tail: Vec<u8> },
    /// The domain has the bytes, and sends them when it is asked to.
    InDomain { serial: Serial, stream: Option<OutgoingStream> },
}

impl Sending {
    /// True if the message cannot be sent once the domain is gone.
    pub(crate) fn needs_domain(&self) -> bool {
        !matches!(self.bytes, PayloadSource::Buffered(_))
    }
}

impl MxTransport {
    pub(crate) fn handle_record(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        record: &Record<'_>,
        bytes: &[u8],
        domain: &mut impl LocalPeer,
    ) -> Result<(), TransportViolation> {
        let cost = DAEMON_PATH_RECORD_COST + bytes.len() as u32;
        match *record {
            Record::Eager { tag, .. } => self.send_buffered(now, peer, tag, bytes.to_vec(), domain),
            Record::FirstFragment { tag, len, serial, .. } => {
                if self.remote_peers[peer].assembling.is_some() {
                    return Err(TransportViolation::Assembling);
                }
                if u64::from(len) > SLAB_MESSAGE_BYTES_MAX {
                    return Err(TransportViolation::NotAnnounced(len));
                }
                let assembling = Assembling { serial, tag, len, bytes: Vec::with_capacity(len as usize) };
                self.remote_peers[peer].assembling = Some(assembling);
                self.append_fragment(now, peer, bytes, domain)?;
            }
            Record::NextFragment { serial, .. } => {
                if self.remote_peers[peer].assembling.as_ref().is_some_and(|message| message.serial == serial) {
                    self.append_fragment(now, peer, bytes, domain)?;
                    self.return_credit(peer, DAEMON_PATH_RECORD_COST, domain);
                } else {
                    self.append_pulled(peer, serial, bytes, domain)?;
                }
            }
            Record::Announce { tag, len, serial, mapped, .. } => {
                self.announce(now, peer, tag, len, serial, mapped, bytes, domain);
            }
            Record::Pull { serial, bytes } => {
                self.return_credit(peer, cost, domain);
                self.fetch(now, peer, serial, bytes, domain);
            }
            Record::Completed { serial, .. } | Record::Bounce { serial, .. } => {
                self.return_credit(peer, cost, domain);
                self.fetch(now, peer, serial, 0, domain);
            }
            Record::Switch => return Err(TransportViolation::Switch),
            Record::Credit { .. } | Record::Abort { .. } => {}
        }
        Ok(())
    }

    /// Gives credit back to the domain.
    fn return_credit(&mut self, peer: RemotePeerIndex, bytes: u32, domain: &mut impl LocalPeer) {
        if bytes > 0 && !self.closed {
            domain.return_credit(self.route(self.remote_peers[peer].id), bytes);
        }
    }

    /// Sends a message from `bytes`.
    fn send_buffered(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        tag: u64,
        bytes: Vec<u8>,
        domain: &mut impl LocalPeer,
    ) {
        let (len, cost) = (bytes.len() as u32, DAEMON_PATH_RECORD_COST + bytes.len() as u32);
        self.start_send(now, peer, (tag, len, cost), SendMode::Standard, PayloadSource::Buffered(bytes), domain);
    }

    /// Starts a send in the MX engine. None if the remote peer is gone; the domain will be notified.
    fn start_send(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        (tag, len, cost): (u64, u32, u32),
        mode: SendMode,
        bytes: PayloadSource,
        domain: &mut impl LocalPeer,
    ) -> Option<SendId> {
        let id = SendId(self.next_send);
        self.next_send += 1;
        let RemotePeer { address, gone, .. } = self.remote_peers[peer];
        if gone || self.net.send(now, address, id, tag, len, mode).is_err() {
            self.return_credit(peer, cost, domain);
            return None;
        }
        self.sends.insert(id, Sending { to: peer, cost, bytes });
        self.unacked += cost;
        let remote_peer = &mut self.remote_peers[peer];
        remote_peer.unacked += cost;
        if remote_peer.unacked > PEER_BYTES_MAX || self.unacked > UNACKED_BYTES_MAX {
            remote_peer.owed += cost;
            self.withholds_credit |= self.unacked > UNACKED_BYTES_MAX;
        } else {
            self.return_credit(peer, cost, domain);
        }
        Some(id)
    }

    /// Returns credit that was held back, because the unacknowledged cost has fallen.
    fn release_held_credit(&mut self, peer: RemotePeerIndex, domain: &mut impl LocalPeer) {
        if self.unacked > UNACKED_BYTES_MAX {
            return;
        }
        let all = std::mem::take(&mut self.withholds_credit);
        let places = if all { self.remote_peers.all().map(|(peer, _)| peer).collect() } else { vec![peer] };
        for peer in places {
            let remote_peer = &mut self.remote_peers[peer];
            if remote_peer.unacked <= PEER_BYTES_MAX {
                let owed = std::mem::take(&mut remote_peer.owed);
                self.return_credit(peer, owed, domain);
            }
        }
    }

    /// Appends a fragment to a message up to 32 KiB.
    fn append_fragment(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        fragment: &[u8],
        domain: &mut impl LocalPeer,
    ) -> Result<(), TransportViolation> {
        let assembling = &mut self.remote_peers[peer].assembling;
        let Some(message) = assembling else { return Ok(()) };
        let left = message.len - message.bytes.len() as u32;
        if fragment.len() as u32 > left {
            return Err(TransportViolation::TooLong { fragment: fragment.len() as u32, left });
        }
        message.bytes.extend_from_slice(fragment);
        if fragment.len() as u32 == left
            && let Some(Assembling { tag, bytes, .. }) = assembling.take()
        {
            // The cost of the first record is part of the message's cost; the cost of the others is returned as they come.
            self.send_buffered(now, peer, tag, bytes, domain);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record, and where it came from")]
    fn announce(
        &mut self,
        now: Time,
        peer: RemotePeerIndex,
        tag: u64,
        len: u64,
        serial: Serial,
        mapped: Option<MappablePages>,
        edges: &[u8],
        domain: &mut impl LocalPeer,
    ) {
        self.return_credit(peer, DAEMON_PATH_RECORD_COST + edges.len() as u32, domain);
        let Ok(len) = u32::try_from(len) else {
            return self.deliver_control(
                peer,
                Record::Bounce { serial, reason: Reason::MessageTooLong.code() },
                domain,
            );
        };
        let found = mapped.and_then(|mapped| self.mapped_payload(peer, serial, len, mapped, edges));
        let (mode, bytes) = match found {
            Some(bytes) => (SendMode::Synchronous, bytes),
            None => (SendMode::OnDemand, PayloadSource::InDomain { serial, stream: None }),
        };
        if let Some(send) = self.start_send(now, peer, (tag, len, 0), mode, bytes, domain) {
            self.edges += edge_bytes(&self.sends[&send].bytes);
            self.remote_peers[peer].announced.insert(serial, send);
        }
    }

    /// Finds the bytes of a message in memory that the domain has granted. None if they are not there; they are then pulled.
    fn mapped_payload(
        &self,
        peer: RemotePeerIndex,
        serial: Serial,
        len: u32,
        mapped: MappablePages,
        edges: &[u8],
    ) -> Option<PayloadSource> {
        if self.edges + edges.len() > EDGES_BYTES_MAX {
            return None;
        }
        let region = Arc::clone(self.regions.get(&(self.remote_peers[peer].id, mapped.region))?);
        let (head, tail) = edges.split_at_checked(usize::from(mapped.head))?;
        let body = len.checked_sub(edges.len() as u32)?;
        region.gather(mapped.offset, body as usize).ok()?;
        let (head, tail) = (head.to_vec(), tail.to_vec());
        Some(PayloadSource::Mapped { serial, region, offset: mapped.offset, head, body, tail })
    }

    /// Handles a peer's request for bytes that the domain has.
    pub(crate) fn pull_requested(&mut self, send: SendId, bytes: u32, total: u32, domain: &mut impl LocalPeer) {
        let Some(Sending { to, bytes: PayloadSource::InDomain { stream, .. }, .. }) = self.sends.get_mut(&send) else {
            return;
        };
        let to = *to;
        if self.closed {
            return;
        }
        if let Some(stream) = stream {
            stream.wanted = stream.wanted.max(bytes);
            self.streamed -= stream.discard_consumed(RETAINED_BLOCKS * self.net.setup().sizes.block_bytes());
            let owed = if stream.defers_credit() { 0 } else { std::mem::take(&mut stream.owed) };
            return self.return_credit(to, owed, domain);
        }
        *stream = Some(OutgoingStream { total, wanted: bytes, base: 0, bytes: Vec::new(), owed: 0, requested: false });
        self.waiting_streams.push_back(send);
        self.start_pulls(domain);
    }

    /// Asks the domain for the next messages, while there is room for their streams.
    fn start_pulls(&mut self, domain: &mut impl LocalPeer) {
        while self.streams < STREAMS_MAX
            && let Some(send) = self.waiting_streams.pop_front()
        {
            let Some(Sending { to, bytes: PayloadSource::InDomain { serial, stream: Some(stream) }, .. }) =
                self.sends.get_mut(&send)
            else {
                continue;
            };
            stream.requested = true;
            self.streams += 1;
            let (to, record) = (*to, Record::Pull { serial: *serial, bytes: stream.total.into() });
            self.deliver_control(to, record, domain);
        }
    }

    /// Appends a fragment to a message that was pulled from the domain.
    fn append_pulled(
        &mut self,
        peer: RemotePeerIndex,
        serial: Serial,
        fragment: &[u8],
        domain: &mut impl LocalPeer,
    ) -> Result<(), TransportViolation> {
        let cost = DAEMON_PATH_RECORD_COST + fragment.len() as u32;
        let send = self.remote_peers[peer].announced.get(&serial).copied();
        let sending = send.and_then(|send| Some((send, self.sends.get_mut(&send)?)));
        let Some((send, Sending { bytes: PayloadSource::InDomain { stream: Some(stream), .. }, .. })) = sending else {
            self.return_credit(peer, cost, domain); // The send is over already.
            return Ok(());
        };
        let left = stream.total - stream.received();
        if fragment.len() as u32 > left {
            return Err(TransportViolation::TooLong { fragment: fragment.len() as u32, left });
        }
        stream.bytes.extend_from_slice(fragment);
        self.streamed += fragment.len();
        let (received, defers) = (stream.received(), stream.defers_credit());
        if defers {
            stream.owed += cost;
        }
        self.net.provide(send, received);
        self.return_credit(peer, if defers { 0 } else { cost }, domain);
        Ok(())
    }

    /// Completes a send.
    pub(crate) fn send_finished(
        &mut self,
        send: SendId,
        code: isthmus_mx::StatusCode,
        bytes: u32,
        domain: &mut impl LocalPeer,
    ) {
        let Some(Sending { to, cost, bytes: kept }) = self.sends.remove(&send) else { return };
        let success = code == isthmus_mx::StatusCode::Success;
        self.unacked -= cost;
        self.edges -= edge_bytes(&kept);
        self.remote_peers[to].unacked -= cost;
        // Only a successful send returns credit, because credit tells the domain that the message has arrived.
        if success {
            self.release_held_credit(to, domain);
        }
        match kept {
            PayloadSource::Buffered(_) => {}
            PayloadSource::Mapped { serial, .. } | PayloadSource::InDomain { serial, stream: None } => {
                self.remote_peers[to].announced.remove(&serial);
                let record = match success {
                    true => Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes: bytes.into() },
                    false => Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
                };
                self.deliver_control(to, record, domain);
            }
            PayloadSource::InDomain { serial, stream: Some(stream) } => {
                self.streamed -= stream.bytes.len();
                self.remote_peers[to].announced.remove(&serial);
                if stream.requested {
                    self.streams -= 1;
                    if success && stream.owed > 0 && !self.closed {
                        domain.return_credit_now(self.route(self.remote_peers[to].id), stream.owed);
                    }
                } else {
                    self.deliver_control(
                        to,
                        Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes: bytes.into() },
                        domain,
                    );
                }
                self.start_pulls(domain);
            }
        }
    }

    /// Returns the bytes of a packet in up to three parts. None if its message is over.
    pub fn data(&self, source: PayloadRange) -> Option<[Gather<'_>; 3]> {
        let (at, len) = (source.at as usize, source.len as usize);
        match &self.sends.get(&source.send)?.bytes {
            PayloadSource::Buffered(bytes) => single(bytes.get(at..at + len)?),
            PayloadSource::Mapped { region, offset, head, body, tail, .. } => {
                let body = region.gather(*offset, *body as usize).ok()?;
                let mut start = 0;
                let cut = [Gather::from(&head[..]), body, Gather::from(&tail[..])].map(|whole| {
                    // What of the packet lies in this part.
                    let range = at.max(start)..(at + len).min(start + whole.len());
                    let part = if range.is_empty() {
                        Gather::EMPTY
                    } else {
                        whole.slice(range.start - start..range.end - start)
                    };
                    start += whole.len();
                    part
                });
                Some(cut)
            }
            PayloadSource::InDomain { stream: Some(stream), .. } => {
                let at = at.checked_sub(stream.base as usize)?;
                single(stream.bytes.get(at..at + len)?)
            }
            PayloadSource::InDomain { stream: None, .. } => None,
        }
    }
}

/// Bytes of a message that are kept though they are in memory of the domain's.
fn edge_bytes(bytes: &PayloadSource) -> usize {
    if let PayloadSource::Mapped { head, tail, .. } = bytes { head.len() + tail.len() } else { 0 }
}

fn single(bytes: &[u8]) -> Option<[Gather<'_>; 3]> {
    Some([Gather::from(bytes), Gather::EMPTY, Gather::EMPTY])
}

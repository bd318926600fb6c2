//! Long messages: announced by the sender, fetched frame by frame by the receiver, and completed by a NOTIFY (mxoe-wire 10).
//!
//! ```text
//!   sender    region opened ── RNDV ──►                    ◄── NOTIFY ── region closed; over when the RNDV is acknowledged, too
//!   receiver               announced ── pull ── PULL ──► ◄── frames ── whole ── notify
//! ```

#[cfg(doc)]
use super::SendMode;
use super::blocks::{BlockRequest, FrameSlice, RequestedFrames, TransferLayout};
use super::endpoint::{NackPacket, Timer};
use super::outbox::OutboxEntry;
use super::regions::RegionName;
use super::transfer::PullTransfer;
use super::{Address, Endpoint, EndpointEvent, Ignored, IncomingId, SendId, Time, UnknownMessage};
use crate::StatusCode;
use crate::wire::{Nack, NackMcp, PeerIndex, Pull as PullPacket, PullHandle, PullReply};

/// Limit of the requests for our regions that wait for a reply. Only a peer that repeats its requests causes more.
const PULL_REQUESTS_MAX: usize = 1024;

/// A long message that was announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) from: Address,
    pub(crate) length: u32,
    pub(crate) region: RegionName,
    pub(crate) offset: u16,
}

/// A long message that is being fetched.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) message: IncomingId,
    pub(crate) announced: Announced,
    pub(crate) transfer: PullTransfer,
    /// The pull is in `request_queue`.
    pub(crate) is_queued: bool,
    /// The pull is in `pulls_ready`, to request another block.
    is_ready: bool,
    wake: Option<Time>,
}

/// A peer's request for frames of a region.
#[derive(Debug)]
pub(crate) struct PullRequest {
    pub(crate) to: PeerIndex,
    pub(crate) puller: PullHandle,
    region: RegionName,
    pub(crate) frames: RequestedFrames,
}

impl Endpoint {
    /// Fetches a large message: its first `length` bytes, or all if it has fewer. With 0 nothing is fetched, and the sender is notified
    /// of that. Requests only blocks that begin before `limit` until [more is allowed](Self::allow).
    /// [`EndpointEvent::Received`] ends the fetch; if it is successful, [`notify`](Self::notify) ends the send.
    pub fn pull(&mut self, now: Time, message: IncomingId, length: u32, limit: u32) -> Result<(), UnknownMessage> {
        let announced = self.announced.remove(&message).ok_or(UnknownMessage)?;
        if let Some(partner) = self.partners.get_mut(&announced.from) {
            partner.announced -= 1;
        }
        let length = length.min(announced.length);
        if length == 0 {
            self.end_fetch(now, message, announced, StatusCode::Success);
            return Ok(());
        }
        let (sizes, tuning) = (&self.setup.sizes, &self.setup.tuning);
        let layout = TransferLayout::new(sizes.reply_bytes(), sizes.block_frames(), announced.offset.into(), length);
        let known = self.partners.get(&announced.from).map(|partner| partner.pull_round_trip).unwrap_or_default();
        let transfer = PullTransfer::new(now, layout, sizes.block_frames(), (length, limit), tuning, known);
        let handle = self.next_pull;
        self.next_pull = handle.wrapping_add(1);
        self.pulls.insert(handle, Pull { message, announced, transfer, is_queued: false, is_ready: false, wake: None });
        self.pulls_by_message.insert(message, handle);
        self.request_blocks(now, handle);
        Ok(())
    }

    /// Permits requests up to `limit` bytes of a message that is being fetched.
    pub fn allow(&mut self, now: Time, message: IncomingId, limit: u32) {
        let Some(&handle) = self.pulls_by_message.get(&message) else { return };
        if let Some(pull) = self.pulls.get_mut(&handle) {
            pull.transfer.allow(limit);
            self.request_blocks(now, handle);
        }
    }

    /// Sets the number of bytes that all transfers to this endpoint may have in flight together.
    pub fn set_fetch_bytes_max(&mut self, bytes: u32) {
        self.setup.tuning.fetch_bytes_max = bytes;
    }

    /// Returns true if transfers to this endpoint are in progress.
    pub fn is_fetching(&self) -> bool {
        !self.pulls.is_empty()
    }

    /// Queues a transfer that may have more to request. Transfers take turns, a block at a time, while the window has room.
    fn request_blocks(&mut self, now: Time, handle: u32) {
        if let Some(pull) = self.pulls.get_mut(&handle)
            && !core::mem::replace(&mut pull.is_ready, true)
        {
            self.pulls_ready.push_back(handle);
        }
        let most = self.setup.tuning.fetch_bytes_max.min(self.pull_window.bytes());
        while self.fetch_bytes < most {
            let Some(next) = self.pulls_ready.pop_front() else { break };
            let Some(pull) = self.pulls.get_mut(&next) else { continue };
            let before = pull.transfer.in_flight();
            if pull.transfer.request_next_block(now) {
                self.fetch_bytes += pull.transfer.in_flight() - before;
                self.pulls_ready.push_back(next);
                self.update_pull(now, next);
            } else {
                pull.is_ready = false;
            }
        }
        if !self.pulls_ready.is_empty() {
            self.pull_window.mark_limited();
        }
        self.update_pull(now, handle);
    }

    /// Ends a transfer, complete or not.
    pub(crate) fn end_pull(&mut self, handle: u32) -> Option<Pull> {
        let pull = self.pulls.remove(&handle)?;
        self.pulls_by_message.remove(&pull.message);
        self.fetch_bytes -= pull.transfer.in_flight();
        Some(pull)
    }

    /// Lets other transfers use the window space that a finished one has freed.
    pub(crate) fn request_next_pull(&mut self, now: Time) {
        if let Some(next) = self.pulls_ready.front().copied() {
            self.request_blocks(now, next);
        }
    }

    /// Returns the words by which replies find their transfer. The last octet is the endpoint for the board, as in
    /// Open-MX (1.2).
    pub(crate) fn handle(&self, handle: u32) -> PullHandle {
        let endpoint = u32::from(self.setup.number.0 ^ 0x80);
        PullHandle { handle, magic: self.setup.secret & !0xff | endpoint }
    }

    /// Returns a request as a packet.
    pub(crate) fn pull_packet(&self, handle: u32, pull: &Pull, ask: BlockRequest) -> Option<PullPacket> {
        let from = pull.announced.from;
        Some(PullPacket {
            dst_endpoint: from.endpoint,
            src_endpoint: self.setup.number,
            session: self.partners.get(&from)?.session_back()?,
            total_length: pull.transfer.length(),
            pulled_rdma_id: pull.announced.region.id.into(),
            pulled_rdma_seqnum: pull.announced.region.seqnum,
            pulled_rdma_offset: pull.announced.offset.into(),
            puller: self.handle(handle),
            first_frame_offset: ask.first_frame_offset,
            block_length: ask.block_length,
            frame_index: ask.frame_index,
        })
    }

    /// Handles a peer's request for frames of a region.
    pub(crate) fn receive_pull(&mut self, now: Time, from: Address, pull: &PullPacket) -> Result<(), Ignored> {
        if pull.session != self.setup.session {
            self.refuse_pull(from, pull, Nack::BadSession);
            return Err(Ignored::WrongSession);
        }
        let name = u8::try_from(pull.pulled_rdma_id).ok().map(|id| RegionName { id, seqnum: pull.pulled_rdma_seqnum });
        let found = name.and_then(|name| self.regions.requested_region(name, from));
        let Some((region, found)) = found else {
            self.refuse_pull(from, pull, Nack::BadRdmaWindow);
            return Err(Ignored::OutsideRegion);
        };
        let ask = BlockRequest {
            frame_index: pull.frame_index,
            first_frame_offset: pull.first_frame_offset,
            block_length: pull.block_length,
        };
        let sizes = &self.setup.sizes;
        // Our announcements have offset 0.
        let length = if pull.pulled_rdma_offset == 0 { found.length } else { 0 };
        let frames =
            RequestedFrames::new(ask, sizes.reply_bytes(), sizes.block_frames(), pull.pulled_rdma_offset, length);
        let frames = frames.ok_or(Ignored::OutsideRegion)?;
        let same =
            |asked: &&PullRequest| asked.puller == pull.puller && asked.to == from.peer && asked.frames == frames;
        if self.pull_requests.len() >= PULL_REQUESTS_MAX || self.pull_requests.iter().any(|asked| same(&asked)) {
            return Err(Ignored::TooManyPullRequests);
        }
        let (send, end) = (found.send, frames.end());
        if end > found.wanted {
            found.wanted = end;
            let total = pull.total_length.clamp(end, found.length);
            self.events.push_back(EndpointEvent::DataWanted { send, bytes: end, total });
        }
        if let Some(partner) = self.partners.get_mut(&from) {
            partner.last_seen = now;
        }
        self.pull_requests.push_back(PullRequest { to: from.peer, puller: pull.puller, region, frames });
        Ok(())
    }

    fn refuse_pull(&mut self, from: Address, pull: &PullPacket, nack_type: Nack) {
        let nack = NackMcp { src_endpoint: pull.src_endpoint, nack_type, puller: pull.puller };
        self.queue_nack(from.peer, NackPacket::Mcp(nack));
    }

    /// Makes more bytes of an [on-demand](super::SendMode::OnDemand) message available: its first `bytes`.
    pub fn provide(&mut self, send: SendId, bytes: u32) {
        if let Some(region) = self.regions.of(send) {
            region.ready = bytes.clamp(region.ready, region.length);
        }
    }

    /// Returns the next requested frame of an open region with available bytes.
    pub(crate) fn next_requested_frame(&mut self) -> Option<(PeerIndex, PullHandle, SendId, u32, FrameSlice)> {
        let mut at = 0;
        while let Some(asked) = self.pull_requests.get_mut(at) {
            let Some((region, next)) = self.regions.get(asked.region).zip(asked.frames.clone().next()) else {
                self.pull_requests.remove(at);
                continue;
            };
            let (frame, slice) = next;
            if slice.msg_offset + slice.len > region.ready {
                at += 1;
                continue;
            }
            asked.frames.next();
            let frame = (asked.to, asked.puller, region.send, frame, slice);
            if asked.frames.is_over() {
                self.pull_requests.remove(at);
            }
            return Some(frame);
        }
        None
    }

    /// Handles a frame of a transfer.
    pub(crate) fn receive_frame(
        &mut self,
        now: Time,
        from: PeerIndex,
        reply: &PullReply<&[u8]>,
    ) -> Result<(), Ignored> {
        let handle = reply.puller.handle;
        if self.handle(handle) != reply.puller {
            return Err(Ignored::NoSuchPull);
        }
        let pull = self.pulls.get_mut(&handle).filter(|pull| pull.announced.from.peer == from);
        let pull = pull.ok_or(Ignored::NoSuchPull)?;
        // The length of a frame has 16 bits.
        let slice = FrameSlice { msg_offset: reply.msg_offset, len: reply.data.len() as u32 };
        let before = pull.transfer.in_flight();
        let sample = pull.transfer.accept(now, reply.frame_seqnum, slice)?;
        let retired = before - pull.transfer.in_flight();
        self.fetch_bytes -= retired;
        let from = pull.announced.from;
        let (message, length) = (pull.message, pull.transfer.length());
        self.events.push_back(EndpointEvent::Bytes { message, length, at: slice.msg_offset, len: slice.len });
        if let Some(partner) = self.partners.get_mut(&from) {
            partner.last_seen = now;
            if let Some(asked) = sample {
                partner.pull_round_trip.sample(asked, now);
            }
            pull.transfer.learn(partner.pull_round_trip);
            let most = self.setup.tuning.fetch_bytes_max;
            self.pull_window.record_frame(slice.len, partner.pull_round_trip.is_long(), most);
        }
        let over = self.pulls.get(&handle).is_none_or(|pull| pull.transfer.is_over());
        if !over {
            if retired > 0 {
                self.request_blocks(now, handle);
            } else {
                self.update_pull(now, handle);
            }
        } else if let Some(pull) = self.end_pull(handle) {
            self.fetched.insert(message, (pull.announced, length));
            self.events.push_back(EndpointEvent::Received { message, code: StatusCode::Success, xfer_length: length });
            self.request_next_pull(now);
        }
        Ok(())
    }

    /// Handles the refusal of a request.
    pub(crate) fn pull_refused(&mut self, now: Time, from: PeerIndex, nack: &NackMcp) -> Result<(), Ignored> {
        let handle = nack.puller.handle;
        let mine = self.handle(handle) == nack.puller;
        let pull = self.pulls.get(&handle).filter(|pull| mine && pull.announced.from.peer == from);
        let (message, announced) = pull.map(|pull| (pull.message, pull.announced)).ok_or(Ignored::NoSuchPull)?;
        self.end_pull(handle);
        self.end_fetch(now, message, announced, nack.nack_type.status());
        Ok(())
    }

    /// Ends a large message of which the receiver takes nothing, and notifies the sender.
    fn end_fetch(&mut self, now: Time, message: IncomingId, announced: Announced, code: StatusCode) {
        self.events.push_back(EndpointEvent::Received { message, code, xfer_length: 0 });
        self.fetched.insert(message, (announced, 0));
        self.request_next_pull(now);
        self.notify(now, message);
    }

    /// Notifies the sender of a large message that was fetched. The sender's program then takes the bytes to be in the buffer of the
    /// receiving program, so the caller waits until they are.
    pub fn notify(&mut self, now: Time, message: IncomingId) {
        let Some((announced, total_length)) = self.fetched.remove(&message) else { return };
        if let Some(partner) = self.partners.get_mut(&announced.from) {
            partner.outbox.push(OutboxEntry::Notify { total_length, region: announced.region });
        }
        self.update(now, announced.from);
    }

    /// Ends a large message at its sender. An unknown one has ended before.
    pub(crate) fn notified(&mut self, now: Time, by: Address, region: RegionName, bytes: u32) {
        if let Some((send, bytes)) = self.regions.fetched(region, by, bytes) {
            self.region_closed(now, send, bytes);
        }
    }

    /// Ends a large send, and queues partners that waited for its region.
    pub(crate) fn region_closed(&mut self, now: Time, send: SendId, bytes: u32) {
        self.events.push_back(EndpointEvent::Sent { send, code: StatusCode::Success, xfer_length: bytes });
        if let Some(address) = self.waiting_for_region.pop_front() {
            self.update(now, address);
        }
    }

    pub(crate) fn tick_pull(&mut self, now: Time, handle: u32) {
        let Some(pull) = self.pulls.get_mut(&handle) else { return };
        pull.wake = None;
        let tuning = &self.setup.tuning;
        let from = pull.announced.from;
        let partner = self.partners.get_mut(&from);
        if let Some(partner) = &partner {
            pull.transfer.learn(partner.pull_round_trip); // The replies to other transfers gave it.
        }
        if pull.transfer.deadline(tuning) > now {
            return self.update_pull(now, handle);
        }
        let (message, announced, silent_us) = (pull.message, pull.announced, pull.transfer.idle_us(now));
        let gone_us = partner.as_ref().map_or(u64::MAX, |partner| now.since_us(partner.last_seen));
        // A partner that responds may take its time: its program may have the bytes, and compute.
        if silent_us.min(gone_us) >= tuning.give_up_us() {
            self.end_pull(handle);
            return self.end_fetch(now, message, announced, StatusCode::Timeout);
        }
        let before = pull.transfer.in_flight();
        pull.transfer.expire(now);
        self.fetch_bytes -= before - pull.transfer.in_flight();
        if let Some(partner) = partner
            && silent_us.min(gone_us) >= tuning.probe_us
            && partner.connects.is_empty()
        {
            partner.connect(now, None, 0); // The reply shows whether it exists.
            self.update(now, from);
        }
        self.request_blocks(now, handle);
    }

    fn update_pull(&mut self, now: Time, handle: u32) {
        let Some(pull) = self.pulls.get_mut(&handle) else { return };
        let (again, lost) = pull.transfer.take_rerequest_counts();
        self.traffic.rerequested += u64::from(again);
        self.pull_window.record_lost(lost);
        if !pull.is_queued && pull.transfer.has_request() {
            pull.is_queued = true;
            self.request_queue.push_back(handle);
        }
        let at = pull.transfer.deadline(&self.setup.tuning).max(now.after_us(1));
        if pull.wake.is_none_or(|wake| at < wake) {
            if let Some(wake) = pull.wake {
                self.timers.remove(&(wake, Timer::Pull(handle)));
            }
            pull.wake = Some(at);
            self.timers.insert((at, Timer::Pull(handle)));
        }
    }
}

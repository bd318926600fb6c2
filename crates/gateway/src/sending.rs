//! From the domain to other hosts: where the bytes of a message are until it is over.

use crate::stranger::{Begun, Place, Stranger};
use crate::stream::Stream;
use crate::{Domain, Gateway, Misplaced};
use isthmus_layout::limits::{ORDINARY_RECORD_COST, SLAB_MESSAGE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Mapped, Outcome, Record, Serial};
use isthmus_mx::net::{Manner, SendId, Source, Time};
use isthmus_shm::Gather;
use isthmus_shm::rehome::PeerRegion;
use std::sync::Arc;

/// Cost of what one endpoint has sent and other hosts have not acknowledged, before credit is held back.
pub const UNDER_WAY_BYTES_MAX: u32 = 16 << 20;

/// The same for one stranger: no more than the wire takes at a time.
const STRANGER_BYTES_MAX: u32 = 1 << 20;

/// Bytes that are kept of messages which are in memory of the domain's: their ends. Beyond that all of a message comes in pieces.
const EDGES_BYTES_MAX: usize = 4 << 20;

/// Messages of one endpoint that are fetched from its domain piece by piece at a time.
pub const STREAMS_MAX: usize = 16;

/// Blocks that stay after later ones were asked for: a peer asks for four at a time, and again for what was lost.
const KEPT_BLOCKS: u32 = 8;

/// A message of the domain's that is not over.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) to: Place,
    /// What it counts for until it is acknowledged. 0 for one that is announced: its peer may let it wait, while credit for it
    /// could be what others need to go on.
    cost: u32,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// Here.
    Own(Vec<u8>),
    /// In memory of the domain, but for the ends.
    Mapped { serial: Serial, region: Arc<PeerRegion>, offset: u64, head: Vec<u8>, body: u32, tail: Vec<u8> },
    /// With the domain.
    Away { serial: Serial, stream: Option<Stream> },
}

impl Sending {
    /// True if it goes nowhere without the domain, once that is gone.
    pub(crate) fn needs_the_domain(&self) -> bool {
        !matches!(self.bytes, Bytes::Own(_))
    }
}

impl Gateway {
    pub(crate) fn take_record(
        &mut self,
        now: Time,
        place: Place,
        record: &Record<'_>,
        bytes: &[u8],
        domain: &mut impl Domain,
    ) -> Result<(), Misplaced> {
        let cost = ORDINARY_RECORD_COST + bytes.len() as u32;
        match *record {
            Record::Eager { tag, .. } => self.send_own(now, place, tag, bytes.to_vec(), domain),
            Record::Start { tag, len, serial, .. } => {
                if self.strangers[place].begun.is_some() {
                    return Err(Misplaced::Begun);
                }
                if u64::from(len) > SLAB_MESSAGE_BYTES_MAX {
                    return Err(Misplaced::NotAnnounced(len));
                }
                let begun = Begun { serial, tag, len, bytes: Vec::with_capacity(len as usize) };
                self.strangers[place].begun = Some(begun);
                self.take_piece(now, place, bytes, domain)?;
            }
            Record::More { serial, .. } => {
                if self.strangers[place].begun.as_ref().is_some_and(|begun| begun.serial == serial) {
                    self.take_piece(now, place, bytes, domain)?;
                    self.pay(place, ORDINARY_RECORD_COST, domain);
                } else {
                    self.take_more(place, serial, bytes, domain)?;
                }
            }
            Record::Announce { tag, len, serial, mapped, .. } => {
                self.announce(now, place, tag, len, serial, mapped, bytes, domain);
            }
            Record::Pull { serial, bytes } => {
                self.pay(place, cost, domain);
                self.fetch(now, place, serial, bytes, domain);
            }
            Record::Taken { serial, .. } | Record::Bounce { serial, .. } => {
                self.pay(place, cost, domain);
                self.fetch(now, place, serial, 0, domain);
            }
            Record::Switch => return Err(Misplaced::Switch),
            Record::Credit { .. } | Record::Abort { .. } => {}
        }
        Ok(())
    }

    /// Gives credit back to the domain.
    fn pay(&mut self, place: Place, bytes: u32, domain: &mut impl Domain) {
        if bytes > 0 && !self.closed {
            domain.credit(self.route(self.strangers[place].id), bytes);
        }
    }

    /// Sends a message whose bytes are here.
    fn send_own(&mut self, now: Time, place: Place, tag: u64, bytes: Vec<u8>, domain: &mut impl Domain) {
        let (len, cost) = (bytes.len() as u32, ORDINARY_RECORD_COST + bytes.len() as u32);
        self.begin(now, place, (tag, len, cost), Manner::Plain, Bytes::Own(bytes), domain);
    }

    /// None if the stranger is not one any more: the domain is about to hear of it.
    fn begin(
        &mut self,
        now: Time,
        place: Place,
        (tag, len, cost): (u64, u32, u32),
        manner: Manner,
        bytes: Bytes,
        domain: &mut impl Domain,
    ) -> Option<SendId> {
        let id = SendId(self.next_send);
        self.next_send += 1;
        let Stranger { address, gone, .. } = self.strangers[place];
        if gone || self.net.send(now, address, id, tag, len, manner).is_err() {
            self.pay(place, cost, domain);
            return None;
        }
        self.sends.insert(id, Sending { to: place, cost, bytes });
        self.under_way += cost;
        let stranger = &mut self.strangers[place];
        stranger.under_way += cost;
        if stranger.under_way > STRANGER_BYTES_MAX || self.under_way > UNDER_WAY_BYTES_MAX {
            stranger.owed += cost;
            self.holds_back |= self.under_way > UNDER_WAY_BYTES_MAX;
        } else {
            self.pay(place, cost, domain);
        }
        Some(id)
    }

    /// Less is under way: gives back what was held back.
    fn release(&mut self, place: Place, domain: &mut impl Domain) {
        if self.under_way > UNDER_WAY_BYTES_MAX {
            return;
        }
        let all = std::mem::take(&mut self.holds_back);
        let places = if all { self.strangers.all().map(|(place, _)| place).collect() } else { vec![place] };
        for place in places {
            let stranger = &mut self.strangers[place];
            if stranger.under_way <= STRANGER_BYTES_MAX {
                let owed = std::mem::take(&mut stranger.owed);
                self.pay(place, owed, domain);
            }
        }
    }

    /// The next piece of a message up to 32 KiB.
    fn take_piece(&mut self, now: Time, place: Place, piece: &[u8], domain: &mut impl Domain) -> Result<(), Misplaced> {
        let begun = &mut self.strangers[place].begun;
        let Some(message) = begun else { return Ok(()) };
        let left = message.len - message.bytes.len() as u32;
        if piece.len() as u32 > left {
            return Err(Misplaced::TooLong { piece: piece.len() as u32, left });
        }
        message.bytes.extend_from_slice(piece);
        if piece.len() as u32 == left
            && let Some(Begun { tag, bytes, .. }) = begun.take()
        {
            // What its first record cost is part of the message's cost; that of the others is given back as they come.
            self.send_own(now, place, tag, bytes, domain);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record, and where it came from")]
    fn announce(
        &mut self,
        now: Time,
        place: Place,
        tag: u64,
        len: u64,
        serial: Serial,
        mapped: Option<Mapped>,
        edges: &[u8],
        domain: &mut impl Domain,
    ) {
        self.pay(place, ORDINARY_RECORD_COST + edges.len() as u32, domain);
        let Ok(len) = u32::try_from(len) else {
            return self.tell(place, Record::Bounce { serial, reason: Reason::MessageTooLong.code() }, domain);
        };
        let found = mapped.and_then(|mapped| self.mapped(place, serial, len, mapped, edges));
        let (manner, bytes) = match found {
            Some(bytes) => (Manner::Synchronous, bytes),
            None => (Manner::OnDemand, Bytes::Away { serial, stream: None }),
        };
        if let Some(send) = self.begin(now, place, (tag, len, 0), manner, bytes, domain) {
            self.edges += edges_of(&self.sends[&send].bytes);
            self.strangers[place].announced.insert(serial, send);
        }
    }

    /// The bytes of a message in memory that the domain has granted. None if they are not there: then they come another way.
    fn mapped(&self, place: Place, serial: Serial, len: u32, mapped: Mapped, edges: &[u8]) -> Option<Bytes> {
        if self.edges + edges.len() > EDGES_BYTES_MAX {
            return None;
        }
        let region = Arc::clone(self.regions.get(&(self.strangers[place].id, mapped.region))?);
        let (head, tail) = edges.split_at_checked(usize::from(mapped.head))?;
        let body = len.checked_sub(edges.len() as u32)?;
        region.gather(mapped.offset, body as usize).ok()?;
        let (head, tail) = (head.to_vec(), tail.to_vec());
        Some(Bytes::Mapped { serial, region, offset: mapped.offset, head, body, tail })
    }

    /// A peer waits for bytes that are with the domain.
    pub(crate) fn wanted(&mut self, send: SendId, bytes: u32, total: u32, domain: &mut impl Domain) {
        let Some(Sending { to, bytes: Bytes::Away { stream, .. }, .. }) = self.sends.get_mut(&send) else { return };
        let to = *to;
        if self.closed {
            return;
        }
        if let Some(stream) = stream {
            stream.wanted = stream.wanted.max(bytes);
            self.streamed -= stream.forget(KEPT_BLOCKS * self.net.setup().sizes.block_bytes());
            let owed = if stream.owes() { 0 } else { std::mem::take(&mut stream.owed) };
            return self.pay(to, owed, domain);
        }
        *stream = Some(Stream { total, wanted: bytes, base: 0, bytes: Vec::new(), owed: 0, asked: false });
        self.waiting_streams.push_back(send);
        self.start_streams(domain);
    }

    /// Asks the domain for the messages whose turn it is.
    fn start_streams(&mut self, domain: &mut impl Domain) {
        while self.streams < STREAMS_MAX
            && let Some(send) = self.waiting_streams.pop_front()
        {
            let Some(Sending { to, bytes: Bytes::Away { serial, stream: Some(stream) }, .. }) =
                self.sends.get_mut(&send)
            else {
                continue;
            };
            stream.asked = true;
            self.streams += 1;
            let (to, record) = (*to, Record::Pull { serial: *serial, bytes: stream.total.into() });
            self.tell(to, record, domain);
        }
    }

    /// More of a message that was asked for.
    fn take_more(
        &mut self,
        place: Place,
        serial: Serial,
        piece: &[u8],
        domain: &mut impl Domain,
    ) -> Result<(), Misplaced> {
        let cost = ORDINARY_RECORD_COST + piece.len() as u32;
        let send = self.strangers[place].announced.get(&serial).copied();
        let sending = send.and_then(|send| Some((send, self.sends.get_mut(&send)?)));
        let Some((send, Sending { bytes: Bytes::Away { stream: Some(stream), .. }, .. })) = sending else {
            self.pay(place, cost, domain); // It is over already.
            return Ok(());
        };
        let left = stream.total - stream.here();
        if piece.len() as u32 > left {
            return Err(Misplaced::TooLong { piece: piece.len() as u32, left });
        }
        stream.bytes.extend_from_slice(piece);
        self.streamed += piece.len();
        let (here, owes) = (stream.here(), stream.owes());
        if owes {
            stream.owed += cost;
        }
        self.net.provide(send, here);
        self.pay(place, if owes { 0 } else { cost }, domain);
        Ok(())
    }

    /// A send is over.
    pub(crate) fn sent(&mut self, send: SendId, code: isthmus_mx::StatusCode, bytes: u32, domain: &mut impl Domain) {
        let Some(Sending { to, cost, bytes: kept }) = self.sends.remove(&send) else { return };
        let success = code == isthmus_mx::StatusCode::Success;
        self.under_way -= cost;
        self.edges -= edges_of(&kept);
        self.strangers[to].under_way -= cost;
        // Credit would say that it has arrived. To somebody who is gone none is given.
        if success {
            self.release(to, domain);
        }
        match kept {
            Bytes::Own(_) => {}
            Bytes::Mapped { serial, .. } | Bytes::Away { serial, stream: None } => {
                self.strangers[to].announced.remove(&serial);
                let record = match success {
                    true => Record::Taken { serial, outcome: Outcome::Copied, bytes: bytes.into() },
                    false => Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
                };
                self.tell(to, record, domain);
            }
            Bytes::Away { serial, stream: Some(stream) } => {
                self.streamed -= stream.bytes.len();
                self.strangers[to].announced.remove(&serial);
                if stream.asked {
                    self.streams -= 1;
                    if success && stream.owed > 0 && !self.closed {
                        domain.credit_now(self.route(self.strangers[to].id), stream.owed);
                    }
                } else {
                    self.tell(to, Record::Taken { serial, outcome: Outcome::Copied, bytes: bytes.into() }, domain);
                }
                self.start_streams(domain);
            }
        }
    }

    /// The bytes of a packet, in up to three parts. None if its message is over.
    pub fn data(&self, source: Source) -> Option<[Gather<'_>; 3]> {
        let (at, len) = (source.at as usize, source.len as usize);
        match &self.sends.get(&source.send)?.bytes {
            Bytes::Own(bytes) => one(bytes.get(at..at + len)?),
            Bytes::Mapped { region, offset, head, body, tail, .. } => {
                let body = region.gather(*offset, *body as usize).ok()?;
                let mut start = 0;
                let cut = [Gather::from(&head[..]), body, Gather::from(&tail[..])].map(|whole| {
                    // What of the packet lies in this part.
                    let range = at.max(start)..(at + len).min(start + whole.len());
                    let part = if range.is_empty() {
                        Gather::EMPTY
                    } else {
                        whole.part(range.start - start..range.end - start)
                    };
                    start += whole.len();
                    part
                });
                Some(cut)
            }
            Bytes::Away { stream: Some(stream), .. } => {
                let at = at.checked_sub(stream.base as usize)?;
                one(stream.bytes.get(at..at + len)?)
            }
            Bytes::Away { stream: None, .. } => None,
        }
    }
}

/// Bytes of a message that are kept though they are in memory of the domain's.
fn edges_of(bytes: &Bytes) -> usize {
    if let Bytes::Mapped { head, tail, .. } = bytes { head.len() + tail.len() } else { 0 }
}

fn one(bytes: &[u8]) -> Option<[Gather<'_>; 3]> {
    Some([Gather::from(bytes), Gather::EMPTY, Gather::EMPTY])
}

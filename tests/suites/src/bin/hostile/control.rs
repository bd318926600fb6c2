//! Requests that are well formed and out of place: not their turn, not their channel, not their number, too many.

use crate::raw::{Attached, RawConnection, name, socket};
use crate::{Attack, Done, print_fact};
use anyhow::{Context as _, bail};
use isthmus_client::{Options, QueryClient};
use isthmus_layout::RegionSize;
use isthmus_layout::channel::{ChannelGeometry, Direction, SlabSize};
use isthmus_layout::control::*;
use isthmus_layout::ids::{ChannelId, DomainId, EndpointIndex};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;
use isthmus_platform::{local, seqpacket};
use rustix::fd::{AsFd as _, OwnedFd};

/// Takes names until the daemon gives no more, and keeps them.
pub(crate) fn names() -> Done {
    let mut held = Vec::new();
    let reason = loop {
        let attach = Attach { name: Some(name(&format!("taken-{}", held.len()))), resume: None };
        let raw = match RawConnection::connect_and_greet() {
            Ok(raw) => raw,
            Err(error) => break format!("{error:#}"),
        };
        match raw.attach(attach, &[])? {
            Ok(attached) => held.push(attached),
            Err(reason) => break reason.name().to_owned(),
        }
    };
    print_fact(&format!("names {} then {reason}", held.len()));
    std::mem::forget(held);
    Ok(())
}

/// Sends messages that are not allowed in this state, about channels of other domains.
pub(crate) fn send_out_of_order(attack: &mut Attack) -> Done {
    let answered = |what: &str, outcome: Result<(), Reason>| {
        print_fact(&format!("{what}: {}", outcome.map_or_else(|reason| reason.name(), |()| "DONE")));
    };
    let mut early = RawConnection::connect()?;
    answered("attach before hello", early.ask(Attach { name: None, resume: None }, &[])?.map(drop));
    let mut greeted = RawConnection::connect_and_greet()?;
    let hello = Hello { magic: Magic, versions: VersionRange::CURRENT, library: name("hostile 1") };
    answered("hello twice", greeted.ask(hello, &[])?.map(drop));
    answered("endpoint before attach", greeted.ask(OpenEndpoint { index: None, label: None }, &[])?.map(drop));
    let mut us = RawConnection::connect_and_attach(None)?;
    answered("attach twice", us.raw.ask(Attach { name: None, resume: None }, &[])?.map(drop));
    let index = EndpointIndex::new(9).context("an endpoint")?;
    answered("close what is not open", us.raw.ask(CloseEndpoint { index }, &[])?.map(drop));
    let foreign = channels_of_others()?;
    let Some(&channel) = foreign.first() else { bail!("there is no channel") };
    let told = |outcome: Option<Reason>| outcome.map_or(Ok(()), Err);
    let reason = Reason::ClosedLocally;
    answered("accept a foreign channel", told(us.raw.send_and_check(AcceptChannel { channel })?));
    answered("refuse a foreign channel", told(us.raw.send_and_check(RefuseChannel { channel, reason })?));
    answered("close a foreign channel", told(us.raw.send_and_check(CloseChannel { channel, reason })?));
    answered("close what is no channel", told(us.raw.send_and_check(CloseChannel { channel: ChannelId(3), reason })?));
    let victim = us.raw.lookup(&attack.victim)?;
    answered("adopt a foreign channel", us.adopt(channel, victim, Direction::Zero, 100)?);
    answered(
        "a channel with itself",
        told(us.raw.send_and_check(RequestChannel { peer: us.welcome.domain, attempt: 1 })?),
    );
    let absent = DomainId::new(u32::MAX).context("a number")?;
    answered("a channel with no domain", told(us.raw.send_and_check(RequestChannel { peer: absent, attempt: 255 })?));
    let region = isthmus_layout::ids::RegionId(77);
    answered("revoke what was not granted", told(us.raw.send_and_check(Revoke { peer: victim, region })?));
    Ok(())
}

/// The channels there are, none of them ours.
fn channels_of_others() -> anyhow::Result<Vec<ChannelId>> {
    let options = Options { socket: Some(socket()), no_autostart: true, ..Options::default() };
    let report = QueryClient::connect(&options)?.query(Topic::Channels, &[])?;
    let report: isthmus_report::Channels = serde_json::from_str(&report)?;
    let ids = report.pairs.iter().filter_map(|pair| pair.channel.as_ref());
    Ok(ids.filter_map(|row| u64::from_str_radix(row.id.strip_prefix('c')?, 16).ok().map(ChannelId)).collect())
}

impl Attached {
    /// Shows a channel as if it were from before a restart.
    fn adopt(
        &mut self,
        channel: ChannelId,
        peer: DomainId,
        direction: Direction,
        ready_bit: u16,
    ) -> anyhow::Result<Result<(), Reason>> {
        let slab = SlabSize::new(64 << 10).context("a slab")?;
        let memory = local::memory(ChannelGeometry { slab }.size())?;
        self.adopt_with(channel, peer, direction, ready_bit, &memory)
    }

    fn adopt_with(
        &mut self,
        channel: ChannelId,
        peer: DomainId,
        direction: Direction,
        ready_bit: u16,
        memory: &OwnedFd,
    ) -> anyhow::Result<Result<(), Reason>> {
        let (slab, ready_bit) =
            (SlabSize::new(64 << 10).context("a slab")?, ReadyBit::new(ready_bit).context("a place")?);
        let adopt = AdoptChannel {
            channel,
            peer,
            direction,
            slab,
            ready_map: ReadyMapIndex::DAEMON,
            ready_bit,
            peer_ready_bit: ready_bit,
        };
        Ok(self.raw.ask(adopt, &[memory.as_fd()])?.map(drop))
    }
}

/// Two conspirators show a channel under a number that the daemon has not given out yet, and then have it give out that number.
pub(crate) fn adopt_future_channels() -> Done {
    let (mut one, mut two, mut three) = (
        RawConnection::connect_and_attach(None)?,
        RawConnection::connect_and_attach(None)?,
        RawConnection::connect_and_attach(None)?,
    );
    let serial = one.raw.say(RequestChannel { peer: three.welcome.domain, attempt: 1 }, &[])?;
    let received = one.raw.receive_matching(|received| received.serial == Some(serial))?;
    let ToClient::ChannelOffer(offer) = received.message else { bail!("no offer but {:?}", received.message) };
    let memory = local::memory(RegionSize(1 << 20))?;
    for ahead in 1..4 {
        let channel = ChannelId(offer.channel.0 + ahead);
        let [ours, theirs] = [&one, &two].map(|domain| domain.welcome.domain);
        let ready_bit = 100 + ahead as u16;
        let first = one.adopt_with(channel, theirs, Direction::Zero, ready_bit, &memory)?;
        let second = two.adopt_with(channel, ours, Direction::One, ready_bit, &memory)?;
        print_fact(&format!(
            "adopted ahead {ahead}: {:?} {:?}",
            first.map_err(Reason::name),
            second.map_err(Reason::name)
        ));
    }
    for _ in 0..8 {
        three.raw.say(RequestChannel { peer: two.welcome.domain, attempt: 1 }, &[])?;
        two.raw.say(CloseChannel { channel: ChannelId(0), reason: Reason::ClosedLocally }, &[])?;
        let mut another = RawConnection::connect_and_attach(None)?;
        let serial = another.raw.say(RequestChannel { peer: three.welcome.domain, attempt: 1 }, &[])?;
        another.raw.receive_matching(|received| received.serial == Some(serial))?;
    }
    Ok(())
}

/// Asks and asks, and reads no answer, until the daemon has had enough.
pub(crate) fn stop_reading() -> Done {
    let us = RawConnection::connect_and_attach(Some("deaf"))?;
    let lookup = ToDaemon::from(Lookup { name: name("absent") }).emit(RequestSerial::new(1));
    let mut asked = 0_u64;
    while us.raw.send_raw(&lookup, &[]) {
        asked += 1;
    }
    print_fact(&format!("asked {asked}"));
    Ok(())
}

/// Floods the daemon with requests for reports, each of which is long.
pub(crate) fn flood_queries() -> Done {
    let us = RawConnection::connect_and_attach(Some("inquisitive"))?;
    let crowd = (0..60)
        .map(|at| RawConnection::connect_and_attach(Some(&format!("one-of-many-domains-that-make-reports-long-{at}"))));
    let crowd: Vec<Attached> = crowd.collect::<Result<_, _>>()?;
    let query = |topic| {
        ToDaemon::from(Query { topic, arguments: List::new(Vec::new()).expect("none") }).emit(RequestSerial::new(1))
    };
    let queries = [Topic::Metrics, Topic::Config, Topic::Domains].map(query);
    let mut asked = 0;
    while asked < 3000 && us.raw.send_raw(&queries[asked % 3], &[]) {
        asked += 1;
    }
    print_fact(&format!("asked {asked}"));
    std::mem::forget((us, crowd));
    Ok(())
}

/// Asks for channels with everybody, again and again, and takes none.
pub(crate) fn connect_to_all(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(None)?;
    let victim = us.raw.lookup(&attack.victim)?;
    let numbers = 1..=victim.number() + 8;
    let (mut offers, mut refusals) = (0, 0);
    for round in 0..600 {
        for peer in numbers.clone().filter_map(DomainId::new) {
            us.raw.say(RequestChannel { peer, attempt: (round % 3) as u8 + 1 }, &[])?;
        }
        let (mut packet, mut fds) = (vec![0; 16 << 10], Vec::new());
        while let Ok(bytes) = seqpacket::receive(&us.raw.socket, &mut packet, &mut fds, false) {
            match ToClient::parse(&packet[..bytes], fds.len()) {
                Ok((_, ToClient::ChannelOffer(_))) => offers += 1,
                Ok((_, ToClient::ChannelRefused(_))) => refusals += 1,
                _ => {}
            }
        }
    }
    print_fact(&format!("offers {offers} refusals {refusals}"));
    Ok(())
}

/// Tries to resume as a domain that this process never was.
pub(crate) fn forge_tickets(attack: &mut Attack) -> Done {
    let mut us = RawConnection::connect_and_attach(Some("forger"))?;
    let victim = us.raw.lookup(&attack.victim)?;
    let own = us.welcome.clone();
    let [memory, bell] = [us.fds[3].try_clone()?, us.fds[4].try_clone()?];
    drop(us);
    let random = Ticket(attack.bytes(32).try_into().expect("32 bytes were requested"));
    let mut flipped = own.ticket;
    flipped.0[attack.chance.below(32) as usize] ^= 1 << attack.chance.below(8);
    let claims = [
        ("the victim's number and name by our ticket", victim, attack.victim.as_str(), own.ticket),
        ("the victim's number by our ticket", victim, "forger", own.ticket),
        ("our number by a random ticket", own.domain, "forger", random),
        ("our number by a ticket with a wrong bit", own.domain, "forger", flipped),
        ("our number under another name", own.domain, "another", own.ticket),
        ("zeroes", own.domain, "forger", Ticket([0; 32])),
    ];
    for (what, domain, called, ticket) in claims {
        let attach = Attach { name: Some(name(called)), resume: Some(Resume { domain, ticket }) };
        let outcome = RawConnection::connect_and_greet()?.attach(attach, &[memory.as_fd(), bell.as_fd()])?;
        print_fact(&format!("{what}: {}", outcome.map_or_else(|reason| reason.name(), |_| "RESUMED")));
    }
    let nameless = Attach { name: None, resume: Some(Resume { domain: own.domain, ticket: own.ticket }) };
    let outcome = RawConnection::connect_and_greet()?.attach(nameless, &[memory.as_fd(), bell.as_fd()])?;
    print_fact(&format!("without a name: {}", outcome.map_or_else(|reason| reason.name(), |_| "RESUMED")));
    Ok(())
}

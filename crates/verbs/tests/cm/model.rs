//! Random lives of two programs, and of one with a hostile peer.

use crate::network::{CHANNEL, Network, PORT};
use crate::parameters;
use isthmus_verbs::cm::{Event, EventKind, IdNumber, Kind, Message, Parameters, PortSpace, PrivateData, times};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

/// The events of an identifier that its program has read.
#[derive(Debug, Default)]
struct Seen(Vec<EventKind>);

impl Seen {
    fn note(&mut self, event: &Event) {
        use EventKind::{Disconnected, Established, Rejected, TimewaitExit, Unreachable};
        let is_over = self.0.iter().any(|kind| matches!(kind, Disconnected | Rejected | Unreachable));
        match event.kind {
            TimewaitExit => assert!(self.0.contains(&Disconnected), "{self:?}"),
            _ => assert!(!is_over, "{:?} after the end: {self:?}", event.kind),
        }
        if event.kind == Established {
            assert!(!self.0.contains(&Established), "established twice");
        }
        self.0.push(event.kind);
    }
}

/// One life: each step is an operation, a choice and a chance.
pub(crate) fn live(life: &[[u8; 3]]) {
    let mut network = Network::new();
    let mut ids: [Vec<IdNumber>; 2] = Default::default();
    let mut seen: BTreeMap<(usize, IdNumber), Seen> = BTreeMap::new();
    let mut uid = 0;
    for [operation, which, chance] in life.iter().copied() {
        let of = usize::from(which & 1);
        let pick = |ids: &[IdNumber]| ids.get(usize::from(which / 2) % ids.len().max(1)).copied();
        match operation % 16 {
            0 if network.listener.is_none() => _ = network.listen(PortSpace::Tcp, u32::from(chance % 4)),
            0 if chance < 20 => {
                let listener = network.listener.take().unwrap();
                network.programs[1].manager.destroy(CHANNEL, listener).unwrap();
            }
            1 | 0 => {
                uid += 1;
                let mut own = parameters(uid, &[chance; 8]);
                own.responder_resources = chance % 5;
                drain(&mut network, 0, &mut ids, &mut seen);
                let id = network.routed(u64::from(uid), PortSpace::Tcp);
                network.programs[0].manager.connect(CHANNEL, id, own).unwrap();
                ids[0].push(id);
            }
            2 | 3 => drain(&mut network, of, &mut ids, &mut seen),
            4 | 5 => {
                if let Some(id) = pick(&ids[of]) {
                    let own = parameters(0x1000 + u32::from(chance), b"reply");
                    let _ = network.programs[of].manager.accept(CHANNEL, id, 5000, own);
                }
            }
            6 => {
                if let Some(id) = pick(&ids[of]) {
                    let _ = network.programs[of].manager.disconnect(CHANNEL, id);
                }
            }
            7 if chance < 80 => {
                if let Some(id) = pick(&ids[of]) {
                    let _ = network.programs[of].manager.reject(CHANNEL, id, 0, PrivateData::NONE);
                }
            }
            8 if chance < 80 => {
                if let Some(id) = pick(&ids[of]) {
                    let read = seen.get(&(of, id)).map_or(0, |seen| seen.0.len());
                    let own = if of == 0 { 2 } else { 0 };
                    let events = network.programs[of].manager.destroy(CHANNEL, id).unwrap();
                    assert_eq!(events as usize, read + own, "events of {id:?}");
                    ids[of].retain(|known| *known != id);
                    seen.remove(&(of, id));
                }
            }
            9 => network.pass(u64::from(chance) * times::ASK_PAUSE_NS),
            10 => network.deliver_question(chance < 60, chance > 200),
            11 => network.deliver_reply(chance < 60, chance > 200),
            12 => network.deliver_stream(),
            _ => network.deliver_message(which / 2, of),
        }
        network.perform();
    }
    finish(&mut network, &mut ids, &mut seen);
}

/// All that is under way arrives and all times pass: then both ends of each connection agree.
fn finish(network: &mut Network, ids: &mut [Vec<IdNumber>; 2], seen: &mut BTreeMap<(usize, IdNumber), Seen>) {
    for _ in 0..3 {
        network.settle_for_ever();
        for of in 0..2 {
            drain(network, of, ids, seen);
        }
    }
    for id in &ids[0] {
        let kinds = seen.get(&(0, *id)).map(|seen| seen.0.as_slice()).unwrap_or_default();
        let state = network.programs[0].manager.path(CHANNEL, *id);
        assert!(state.is_ok() && !kinds.is_empty(), "{id:?} has no result: {kinds:?}");
    }
    // Each passive end that has begun ends with its active one.
    for id in ids[0].clone() {
        let _ = network.programs[0].manager.disconnect(CHANNEL, id);
    }
    network.perform();
    network.settle_for_ever();
    for of in 0..2 {
        drain(network, of, ids, seen);
    }
    for ((of, id), seen) in seen {
        let has = |kind| seen.0.contains(&kind);
        assert!(!has(EventKind::Established) || has(EventKind::Disconnected), "{of}: {id:?} was not told: {seen:?}");
    }
}

/// The program reads its events.
fn drain(network: &mut Network, of: usize, ids: &mut [Vec<IdNumber>; 2], seen: &mut BTreeMap<(usize, IdNumber), Seen>) {
    while let Some(event) = network.event(of) {
        if event.kind == EventKind::ConnectRequest {
            assert_eq!((of, event.uid), (1, 1000));
            ids[1].push(event.id);
        } else {
            seen.entry((of, event.id)).or_default().note(&event);
        }
    }
    assert!(!network.programs[of].readable);
}

/// A manager in some state gets these bytes as messages, and goes on.
pub(crate) fn survive(state: u8, bytes: &[u8]) {
    let mut network = Network::new();
    let listener = network.listen(PortSpace::Tcp, 3);
    let id = network.routed(1, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    let steps: [&dyn Fn(&mut Network); 7] = [
        &|network| network.deliver_question(false, false),
        &|network| network.deliver_reply(false, false),
        &Network::deliver_stream,
        &|network| network.deliver_message(0, 0),
        &|network| {
            let asked = network.event(1).unwrap().id;
            network.programs[1].manager.accept(CHANNEL, asked, 2, parameters(2, b"")).unwrap();
            network.perform();
        },
        &|network| network.deliver_message(0, 1),
        &|network| network.programs[0].manager.accept(CHANNEL, id, 0, Parameters::NONE).unwrap(),
    ];
    steps.iter().take(usize::from(state)).for_each(|step| step(&mut network));
    let mut messages = Vec::new();
    for piece in bytes.chunks(24) {
        let mut header = vec![b'I', b'C', b'M', b'1', 1 + piece[0] % 6, u8::from(piece.len() < 3)];
        header.extend_from_slice(&piece[1..]);
        header.resize(44, 0);
        header[10] %= 60;
        header.resize(44 + usize::from(header[10]), 1);
        if let Ok(Some((message, _))) = Message::decode(&header) {
            messages.push(message);
        }
    }
    let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
    let at = network.programs[1].end(PORT);
    let passive = IdNumber(id.0 + 1);
    for message in &messages {
        network.programs[0].manager.received(id, message);
        network.programs[1].manager.received(passive, message);
        let _ = network.programs[1].manager.request(listener, message, from, at);
    }
    network.settle_for_ever();
    // However the connection ended, another one works, once the program has read its events.
    while network.event(1).is_some() {}
    while network.event(0).is_some() {}
    let other = network.routed(2, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, other, parameters(1, b"")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap();
    assert_eq!(asked.kind, EventKind::ConnectRequest);
    assert!(messages.iter().all(|message| message.kind as u8 <= Kind::Disconnected as u8));
}

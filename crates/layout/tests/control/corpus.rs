//! The fuzz corpora (`fuzz/corpus`) hold each message and each record at least once, and pass with any compiler.
//! `UPDATE=1 cargo test -p isthmus-layout --test control corpus` writes the seeds; what a fuzzer adds is kept.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use isthmus_layout::control::version::reply_to_hello;
use isthmus_layout::control::{Lookup, MessageInfo, Name, RequestSerial, ToClient, ToDaemon, VersionRange};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::proxy::addresses::{GuestAddresses, InterfaceAddress};
use isthmus_layout::proxy::grants::{FIRST_GRANT_BATCH, GrantReply, GrantRequest};
use isthmus_layout::proxy::loops::{
    LOOP_BYTES, LoopInterfaces, LoopPeer, LoopPeers, LoopRequest, LoopRequestKind, Mac,
};
use isthmus_layout::proxy::pair_window::{MapReply, MapRequest, PairInvite, PairOffer};
use isthmus_layout::proxy::{
    ClientConnected, ControlPacket, EXTENTS_OFFSET, ProxyFrameKind, ResourceRef, RevokedExtent, WindowId,
};
use isthmus_layout::record::{Fragment, ReceiveOutcome, Record, Route, Serial};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::sample::{to_client, to_daemon};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn files(target: &str) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder(target)).unwrap();
    entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

fn seed(target: &str, name: &str, bytes: &[u8]) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(folder(target).join(name), bytes).unwrap();
    }
}

/// The first message of each kind that a runner without randomness comes up with.
fn one_of_each<M: std::fmt::Debug>(
    strategy: impl Strategy<Value = M>,
    table: &[MessageInfo],
    kind: fn(&M) -> u16,
) -> Vec<M> {
    let mut runner = TestRunner::deterministic();
    let mut left: BTreeSet<u16> = table.iter().map(|info| info.kind).collect();
    let mut messages = Vec::new();
    while !left.is_empty() {
        let message = strategy.new_tree(&mut runner).unwrap().current();
        if left.remove(&kind(&message)) {
            messages.push(message);
        }
    }
    messages
}

#[test]
#[cfg_attr(miri, ignore = "the corpus is large: minutes of parsing, and parsers have no unsafe code")]
fn control_messages_are_all_in_the_corpus() {
    let serial = RequestSerial::new(1);
    for message in one_of_each(to_daemon(), ToDaemon::TABLE, ToDaemon::kind) {
        let bytes = [&[message.descriptors() as u8], &message.emit(serial)[..]].concat();
        seed("control_message", message.name(), &bytes);
    }
    for message in one_of_each(to_client(), ToClient::TABLE, ToClient::kind) {
        if !matches!(message, ToClient::QueryReply(_)) {
            let bytes = [&[message.descriptors() as u8], &message.emit(None)[..]].concat();
            seed("control_message", message.name(), &bytes);
        }
    }
    seed("control_message", "QueryReply", b"\0\x8e\0\0\0\x01\0\0\0\x01\x02\0{}");
    let mut kinds = BTreeSet::new();
    for input in files("control_message") {
        let Some((&descriptors, packet)) = input.split_first() else { continue };
        if let Ok((serial, message)) = ToDaemon::parse(packet, usize::from(descriptors)) {
            assert_eq!(message.emit(serial), packet);
            kinds.insert(message.kind());
        }
        if let Ok((serial, message)) = ToClient::parse(packet, usize::from(descriptors)) {
            assert_eq!(message.emit(serial), packet);
            kinds.insert(message.kind());
        }
    }
    let all: BTreeSet<u16> = ToDaemon::TABLE.iter().chain(ToClient::TABLE).map(|info| info.kind).collect();
    assert_eq!(kinds, all);
}

#[test]
fn handshakes_pass_the_corpus() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handshakes");
    let versions = std::fs::read_dir(recorded).unwrap().map(|entry| entry.unwrap().path());
    for path in versions.flat_map(|version| std::fs::read_dir(version).unwrap()).map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("library")).unwrap().trim();
        let bytes: Vec<u8> =
            (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect();
        let version = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        seed("handshake", &format!("{version}-{stem}"), &bytes);
    }
    let name = Name::new("isthmusd").unwrap();
    for packet in files("handshake") {
        let (serial, answer, outcome) = reply_to_hello(&packet, 0, VersionRange::CURRENT, name.clone());
        assert_eq!(matches!(answer, ToClient::HelloReply(_)), outcome.is_ok());
        assert_eq!(ToClient::parse(&answer.emit(serial), 0), Ok((serial, answer)));
    }
}

fn record_seeds() -> [(&'static str, Record<'static>); 10] {
    let (serial, fragment) = (Serial(1), Fragment { offset: 0, len: 64 });
    [
        ("Eager", Record::Eager { tag: 1, len: 5, words: &[1, 2] }),
        ("FirstFragment", Record::FirstFragment { tag: 1, len: 4000, serial, fragment }),
        ("NextFragment", Record::NextFragment { serial, fragment }),
        (
            "Announce",
            Record::Announce { tag: 1, len: 1 << 20, serial, fragment: Fragment { offset: 0, len: 0 }, mapped: None },
        ),
        ("Pull", Record::Pull { serial, bytes: 1 << 20 }),
        ("Completed", Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes: 1 << 20 }),
        ("Switch", Record::Switch),
        ("Credit", Record::Credit { bytes: 8192 }),
        ("Bounce", Record::Bounce { serial, reason: 66 }),
        ("Abort", Record::Abort { serial, reason: 66 }),
    ]
}

#[test]
fn records_are_all_in_the_corpus() {
    let end = EndpointIndex::new(0).unwrap();
    for (name, record) in record_seeds() {
        let emitted = record.emit(Route { from: end, to: end, epoch: 0, peer: None });
        let (words, len) = match record {
            Record::Eager { words, len, .. } => (words, len as u16),
            _ => (&[][..], 0),
        };
        let words = emitted.words[..emitted.count].iter().chain(words).flat_map(|word| word.to_le_bytes());
        let head = [[emitted.kind].to_vec(), (4 * emitted.count as u16 + len).to_le_bytes().to_vec()].concat();
        seed("record", name, &head.into_iter().chain(words).collect::<Vec<u8>>());
    }
    let mut kinds = BTreeSet::new();
    for input in files("record") {
        let Some((&[kind, low, high], body)) = input.split_first_chunk() else { continue };
        let words: Vec<u32> = body.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        if Record::parse(kind, u16::from_le_bytes([low, high]), &words).is_ok() {
            kinds.insert(kind);
        }
    }
    assert_eq!(kinds.len(), record_seeds().len());
}

fn proxy_seeds() -> Vec<(&'static str, ProxyFrameKind, Vec<u8>)> {
    let connected = ClientConnected { uid: 1000, pid: 7, program: Name::new("mx_pingpong").unwrap() };
    let resources = vec![
        ResourceRef::Extent { window: WindowId(3), offset: EXTENTS_OFFSET, bytes: 4096, generation: 70_000 },
        ResourceRef::Doorbell { peer: 0, vector: 2 },
        ResourceRef::VectorEvents { vector: 9 },
    ];
    let lookup = ToDaemon::from(Lookup { name: Name::new("web").unwrap() }).emit(RequestSerial::new(1));
    let address = InterfaceAddress::new("::ffff:10.0.2.15".parse().unwrap(), Name::new("eth0").unwrap());
    let mac = Mac::new([2, 0, 0x5e, 0, 0, 1]).unwrap();
    let peer = LoopPeer {
        guest: 7,
        own: mac,
        mac,
        window: 3,
        side: 1,
        generation: 70_000,
        offset: EXTENTS_OFFSET,
        bytes: LOOP_BYTES,
        peer: 8,
        peer_vector: 4,
        vector: 5,
    };
    let (window, offset, grant) = (WindowId(3), FIRST_GRANT_BATCH, &b"G\x01\x01\0\x01\0\0\0\x0b\0\0\0"[..]);
    vec![
        ("ClientConnected", ProxyFrameKind::ClientConnected, connected.emit()),
        ("ControlPacket", ProxyFrameKind::ControlPacket, ControlPacket { resources, message: &lookup }.emit()),
        (
            "ControlPacketWithoutResources",
            ProxyFrameKind::ControlPacket,
            ControlPacket { resources: Vec::new(), message: &lookup }.emit(),
        ),
        (
            "RevokedExtent",
            ProxyFrameKind::RevokedExtent,
            RevokedExtent { window: WindowId(3), offset: EXTENTS_OFFSET, generation: 70_000 }.emit(),
        ),
        ("WindowAttached", ProxyFrameKind::WindowAttached, WindowId(3).emit()),
        ("WindowDetached", ProxyFrameKind::WindowDetached, WindowId(3).emit()),
        ("GrantRequest", ProxyFrameKind::GrantRequest, GrantRequest { window, offset, bytes: 4096 }.emit()),
        ("GrantReply", ProxyFrameKind::GrantReply, GrantReply { window, offset, grant }.emit()),
        ("PairInvite", ProxyFrameKind::PairInvite, PairInvite { window, domid: 7, offer: grant }.emit()),
        ("PairOffer", ProxyFrameKind::PairOffer, PairOffer { window, offer: grant }.emit()),
        ("PairClose", ProxyFrameKind::PairClose, window.emit()),
        ("MapRequest", ProxyFrameKind::MapRequest, MapRequest { window, offset, bytes: 4096, grant }.emit()),
        ("MapReply", ProxyFrameKind::MapReply, MapReply { window, offset, mapped: true }.emit()),
        ("Addresses", ProxyFrameKind::Addresses, GuestAddresses::clip(vec![address]).emit()),
        ("LoopInterfaces", ProxyFrameKind::LoopInterfaces, LoopInterfaces::clip(vec![mac]).emit()),
        (
            "LoopRequest",
            ProxyFrameKind::LoopRequest,
            LoopRequest { kind: LoopRequestKind::Ended, guest: 7, window: 3, generation: 70_000 }.emit(),
        ),
        ("LoopPeers", ProxyFrameKind::LoopPeers, LoopPeers::clip(vec![peer]).emit()),
    ]
}

#[test]
fn contents_of_frames_are_all_in_the_corpus() {
    for (name, kind, content) in proxy_seeds() {
        seed("guest_proxy", name, &[&[kind.code()], &content[..]].concat());
    }
    let mut parsed = BTreeSet::new();
    for input in files("guest_proxy") {
        let Some((&code, content)) = input.split_first() else { continue };
        let is_whole = match ProxyFrameKind::from_code(code) {
            Some(ProxyFrameKind::ClientConnected) => ClientConnected::parse(content).is_ok(),
            Some(ProxyFrameKind::ControlPacket) => ControlPacket::parse(content).is_ok(),
            Some(ProxyFrameKind::RevokedExtent | ProxyFrameKind::Reclaimed) => RevokedExtent::parse(content).is_ok(),
            Some(ProxyFrameKind::WindowAttached | ProxyFrameKind::WindowDetached | ProxyFrameKind::PairClose) => {
                WindowId::parse(content).is_ok()
            }
            Some(ProxyFrameKind::PairInvite) => PairInvite::parse(content).is_ok(),
            Some(ProxyFrameKind::PairOffer) => PairOffer::parse(content).is_ok(),
            Some(ProxyFrameKind::MapRequest) => MapRequest::parse(content).is_ok(),
            Some(ProxyFrameKind::MapReply) => MapReply::parse(content).is_ok(),
            Some(ProxyFrameKind::Addresses) => GuestAddresses::parse(content).is_ok(),
            Some(ProxyFrameKind::LoopInterfaces) => LoopInterfaces::parse(content).is_ok(),
            Some(ProxyFrameKind::LoopRequest) => LoopRequest::parse(content).is_ok(),
            Some(ProxyFrameKind::LoopPeers) => LoopPeers::parse(content).is_ok(),
            Some(ProxyFrameKind::GrantRequest) => GrantRequest::parse(content).is_ok(),
            Some(ProxyFrameKind::GrantReply) => GrantReply::parse(content).is_ok(),
            Some(ProxyFrameKind::Closed | ProxyFrameKind::Ack) | None => false,
        };
        parsed.extend(is_whole.then_some(code));
    }
    let all: BTreeSet<u8> = proxy_seeds().iter().map(|(_, kind, _)| kind.code()).collect();
    assert_eq!(parsed, all);
}

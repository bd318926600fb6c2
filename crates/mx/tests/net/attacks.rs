//! An attacker on the wire sends arbitrary packets. Nothing panics or grows without limit, and the attacker changes no
//! state that is protected by a secret.

use crate::host::{Host, HostConfig, address};
use crate::random::{Random, Seed};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_mx::StatusCode;
use isthmus_mx::net::{EndpointEvent, EndpointTuning, Ignored, Time};
use isthmus_mx::wire::{
    Dialect, Eager, EndpointNumber, Liback, Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet, PeerIndex,
    Pull, PullHandle, PullReply, Rndv, SeqNum, SessionId, Sizes,
};

const MX: HostConfig = HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning: TUNING, narrow: true };

const TUNING: EndpointTuning =
    EndpointTuning { resends_max: 20, early_bytes_max: 1 << 20, partners_max: 16, ..EndpointTuning::DEFAULT };

/// Returns a random number that is often one of `some`.
fn number(random: &mut Random, some: &[u64]) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => random.below(4),
        2 => u64::MAX - random.below(3),
        _ => some[random.below(some.len() as u64) as usize],
    }
}

/// Returns a packet to host 0 that any host could have sent. `session` is the sender's guess.
fn packet<'a>(random: &mut Random, session: SessionId, data: &'a [u8]) -> Packet<&'a [u8]> {
    let seq = |random: &mut Random| SeqNum::from_bits(number(random, &[1, 2, 3, 20, 255, 256, 8191]) as u16);
    let (dst_endpoint, src_endpoint) = (address(0).endpoint, EndpointNumber(number(random, &[2, 2, 3]) as u8));
    let head = MessageHead {
        dst_endpoint,
        src_endpoint,
        lib_seqnum: seq(random),
        lib_piggyack: seq(random),
        match_info: 1 << 40 | random.next() >> 24,
        session,
    };
    let puller = PullHandle { handle: number(random, &[1, 2, 5]) as u32, magic: random.next() as u32 };
    let length = number(random, &[0, 1, 4096, 4097, 32768, 1 << 20]) as u32;
    let data = &data[..(number(random, &[0, 1, 32, 4096]) as usize).min(data.len())];
    let (id, seqnum) = (number(random, &[0, 1, 2]) as u8, number(random, &[23, 24]) as u8);
    let nack_type = [Nack::BadEndpoint, Nack::EndpointClosed, Nack::BadSession][random.below(3) as usize];
    match random.below(9) {
        0 => Packet::Tiny(Eager { head, data }),
        1 => Packet::Medium(Medium {
            head,
            length,
            frag_seqnum: number(random, &[0, 1, 7]) as u8,
            frag_pipeline: number(random, &[12, 10]) as u8,
            data,
        }),
        2 => Packet::Rndv(Rndv {
            head,
            msg_length: length,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            pulled_rdma_offset: random.next() as u16,
        }),
        3 => Packet::Notify(Notify {
            dst_endpoint,
            src_endpoint,
            session,
            total_length: length,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            lib_seqnum: head.lib_seqnum,
            lib_piggyack: head.lib_piggyack,
        }),
        4 => Packet::Liback(Liback {
            dst_endpoint,
            src_endpoint,
            session,
            lib_seqnum: head.lib_seqnum,
            acknum: random.next() as u32,
        }),
        5 => Packet::Pull(Pull {
            dst_endpoint,
            src_endpoint,
            session,
            total_length: length,
            pulled_rdma_id: u32::from(id),
            pulled_rdma_seqnum: seqnum,
            pulled_rdma_offset: number(random, &[0]) as u32,
            puller,
            first_frame_offset: number(random, &[0, 4095]) as u32,
            block_length: number(random, &[0, 32768, 32769]) as u32,
            frame_index: number(random, &[0, 8]) as u32,
        }),
        6 => Packet::PullReply(PullReply { frame_seqnum: random.next() as u8, msg_offset: length, puller, data }),
        7 => Packet::NackLib(NackLib { dst_endpoint, src_endpoint, nack_type, lib_seqnum: head.lib_seqnum }),
        _ => Packet::NackMcp(NackMcp { src_endpoint, nack_type, puller }),
    }
}

/// Without the session, an attacker does not disturb messages.
#[test]
fn packets_without_the_session_have_no_effect() {
    let data = vec![0xee; 4096];
    for seed in 0..200 {
        let _seed = Seed(seed);
        let mut random = Random::new(seed);
        let mut simulation =
            Simulation::new(2, MX, NetConditions { loss_per_million: 20_000, ..NetConditions::FINE }, seed);
        simulation.connect_all();
        simulation.run_until_quiet(60_000_000);
        for _ in 0..20 {
            for (from, to) in [(0, 1), (1, 0)] {
                let length = [5, 100, 20_000, 100_000][random.below(4) as usize];
                simulation.send(from, to, length, false).unwrap();
            }
            for _ in 0..20 {
                let forged = packet(&mut random, SessionId(0xdead_beef), &data);
                let peer = PeerIndex::new(random.below(3) as u16).unwrap();
                let _ = simulation.hosts[0].endpoint.receive(simulation.now, peer, &forged);
                simulation.hosts[0].process_events(simulation.now, None);
            }
            simulation.run_until(simulation.now.after_us(random.below(1000)));
        }
        simulation.run_until_quiet(60_000_000);
        for host in &simulation.hosts {
            assert_eq!((host.disconnected, host.failed_receives), (0, 0));
            let mut sends = host.sends.values();
            assert!(sends.all(|sending| sending.ended.unwrap().code == StatusCode::Success));
        }
    }
}

/// A partner may send any packet. False statements about its own messages harm only the partner; all others are
/// checked.
#[test]
fn arbitrary_packets_of_a_partner_neither_panic_nor_fill_memory() {
    let data = vec![0xee; 4096];
    for seed in 0..100 {
        let _seed = Seed(seed);
        let mut random = Random::new(seed);
        let mut simulation = Simulation::new(3, MX, NetConditions::FINE, seed);
        simulation.connect_all();
        simulation.run_until_quiet(60_000_000);
        let session = simulation.hosts[0].endpoint.setup().session;
        let host = &mut simulation.hosts[0];
        let mut now = simulation.now;
        for send in 0..4 {
            host.send(now, 1, 1000 + send, 100_000, false).unwrap();
        }
        for _ in 0..3000 {
            let forged = packet(&mut random, session, &data);
            let received = host.endpoint.receive(now, address(1).peer, &forged);
            drain(host, &forged, received);
            if random.chance(100_000) {
                now = now.after_us(random.below(100_000));
                host.endpoint.tick(now);
            }
            let mut frames = 0;
            while random.chance(990_000) && host.endpoint.transmit(now).is_some() {
                frames += 1;
            }
            assert!(frames < 2000);
        }
        assert!(host.endpoint.early_bytes() <= TUNING.early_bytes_max);
        let _ = host.endpoint.next_deadline();
    }
}

/// Checks that bytes to be written are within the packet and the message.
fn drain(host: &mut Host, packet: &Packet<&[u8]>, received: Result<(), Ignored>) {
    let mut events = 0;
    while let Some(event) = host.endpoint.event() {
        events += 1;
        if let EndpointEvent::Bytes { length, at, len, .. } = event {
            assert!(received.is_ok());
            assert!(len as usize <= packet.data().unwrap().len() && at.checked_add(len).unwrap() <= length);
        }
        if let EndpointEvent::Begun { message, length, large: true, .. } = event {
            let _ = host.endpoint.pull(Time::from_us(1), message, length, u32::MAX);
        }
        if let EndpointEvent::Received { message, .. } = event {
            host.endpoint.notify(Time::from_us(1), message);
        }
    }
    assert!(events < 2000);
}

#[test]
fn partners_have_a_limit() {
    let mut host = Host::new(0, 5, &MX);
    for peer in 0..100 {
        let request = isthmus_mx::wire::ConnectRequest {
            dst_endpoint: address(0).endpoint,
            src_endpoint: EndpointNumber(9),
            src_dst_peer_index: None,
            src_session_id: SessionId(8),
            app_key: 1,
            target_recv_seqnum_start: SeqNum::FIRST,
            connect_seqnum: 0,
        };
        let packet = Packet::ConnectRequest(request);
        let received = host.endpoint.receive(Time::ZERO, PeerIndex::new(peer).unwrap(), &packet);
        assert_eq!(received.is_ok(), peer < 16);
    }
    assert_eq!(host.endpoint.ignored().of(Ignored::TooManyPartners), 84);
}

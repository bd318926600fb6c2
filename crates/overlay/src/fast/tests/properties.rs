//! Any order, loss and duplication of chunks.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::fast::header::{KIND_REPEATED, VERSION};
use crate::samples::samples;

/// Lengths of segments; 0 for a frame that is one packet.
fn sizes() -> impl Strategy<Value = u16> {
    prop_oneof![1 => Just(0), 4 => 8_u16..3000]
}

/// The fate of a datagram: how often it arrives.
fn fates() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1 => Just(0), 6 => Just(1), 1 => Just(2)], 200)
}

/// The datagrams of several messages, with the number of the message and the index of the chunk.
fn send(messages: &[Vec<u8>], datagram_bytes: usize) -> Vec<(usize, usize, Vec<u8>)> {
    let mut sender = Sender::new(u32::MAX - 2);
    let mut wire = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let chunks = datagrams(&mut sender, message, datagram_bytes).into_iter().enumerate();
        wire.extend(chunks.map(|(index, datagram)| (number, index, datagram)));
    }
    wire
}

/// Receives datagrams as `UDP_GRO` gives them: some of one length, and a shorter one at the end.
fn receive_in_buffers(receiver: &mut Receiver, mut rest: &[Vec<u8>], datagrams_max: usize) {
    while let Some(first) = rest.first() {
        let equal = rest.iter().take(datagrams_max).take_while(|datagram| datagram.len() == first.len()).count();
        let is_shorter = |next: &Vec<u8>| equal < datagrams_max && next.len() < first.len();
        let (buffer, after) = rest.split_at(equal + usize::from(rest.get(equal).is_some_and(is_shorter)));
        receiver.receive(&buffer.concat(), first.len());
        rest = after;
    }
    receiver.expire_at(PENDING_MS_MAX);
}

/// Which bytes of the payload of each sample were delivered. Asserts that each delivery is what was sent, and no byte comes twice.
fn delivered_payload(samples: &[(Sample, u16)], messages: &[Vec<u8>], receiver: &Receiver) -> Vec<Vec<bool>> {
    let mut delivered: Vec<_> = samples.iter().map(|(sample, _)| vec![false; sample.payload.len()]).collect();
    let mut open: Vec<usize> = (0..samples.len()).collect();
    for (bytes, is_whole) in &receiver.delivered {
        if *is_whole {
            let index = open.iter().position(|index| messages[*index] == *bytes).expect("was sent");
            delivered[open.remove(index)].fill(true);
            continue;
        }
        // The samples differ in their MAC addresses.
        let index = messages.iter().position(|message| message[12..24] == bytes[12..24]).expect("was sent");
        let part = check_part(&samples[index].0, samples[index].1, bytes);
        assert!(samples[index].0.is_udp || !delivered[index][part.clone()].contains(&true));
        delivered[index][part].fill(true);
    }
    delivered
}

/// Messages of samples that are told apart by their MAC addresses.
fn numbered(samples: &[(Sample, u16)]) -> Vec<Vec<u8>> {
    let number = |(index, (sample, size)): (usize, &(Sample, u16))| {
        let mut message = message(sample, *size);
        message[12] = index as u8 * 2;
        message
    };
    samples.iter().enumerate().map(number).collect()
}

proptest! {
    #[test]
    fn only_what_was_sent_is_delivered(
        samples in prop::collection::vec((samples(), sizes()), 1..6),
        datagram_bytes in 272_usize..2000,
        fates in fates(),
        moves in prop::collection::vec((0_usize..120, 0_usize..120), 0..20),
        datagrams_max in 1_usize..20,
    ) {
        let messages = numbered(&samples);
        let copies = |(index, (_, _, datagram))| vec![datagram; *fates.get(index).unwrap_or(&1)];
        let mut wire: Vec<_> = send(&messages, datagram_bytes).into_iter().enumerate().flat_map(copies).collect();
        let count = wire.len().max(1);
        moves.iter().filter(|_| count > 1).for_each(|(from, to)| wire.swap(from % count, to % count));
        let mut receiver = Receiver::default();
        receive_in_buffers(&mut receiver, &wire, datagrams_max);
        delivered_payload(&samples, &messages, &receiver);
        let counters = receiver.reassembler.counters();
        prop_assert!(counters.in_place + counters.copied + counters.incomplete + counters.lost <= messages.len() as u64);
        prop_assert_eq!(counters.parts, receiver.delivered.iter().filter(|(_, is_whole)| !is_whole).count() as u64);
    }

    #[test]
    fn a_lost_chunk_costs_only_its_own_bytes(
        samples in prop::collection::vec((samples(), 8_u16..3000), 1..6),
        datagram_bytes in 272_usize..2000,
        fates in fates(),
        datagrams_max in 1_usize..20,
    ) {
        let samples: Vec<_> = samples.into_iter().map(|(sample, size)| (Sample { is_udp: false, ..sample }, size)).collect();
        let messages = numbered(&samples);
        let mut expected: Vec<_> = samples.iter().map(|(sample, _)| vec![false; sample.payload.len()]).collect();
        let mut wire = Vec::new();
        for (index, (number, chunk, datagram)) in send(&messages, datagram_bytes).into_iter().enumerate() {
            let (head, bytes) = (12 + samples[number].0.head_bytes(), datagram_bytes - CHUNK_HEADER_BYTES);
            let has_repeated_head = (chunk + 1) * bytes > messages[number].len();
            if !has_repeated_head && fates.get(index) == Some(&0) {
                continue;
            }
            let all = expected[number].len();
            let at = |end: usize| end.saturating_sub(head).min(all);
            expected[number][at(chunk * bytes)..at((chunk + 1) * bytes)].fill(true);
            wire.push(datagram);
        }
        let mut receiver = Receiver::default();
        receive_in_buffers(&mut receiver, &wire, datagrams_max);
        prop_assert_eq!(delivered_payload(&samples, &messages, &receiver), expected);
    }

    #[test]
    fn random_bytes_never_panic(
        buffers in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..900), any::<u16>(), 0_u32..1100, 0_u32..1100), 0..40,
        ),
    ) {
        let mut receiver = Receiver::default();
        for (mut bytes, segment_bytes, total, offset) in buffers {
            let segment_bytes = usize::from(segment_bytes % 600);
            for datagram in bytes.chunks_mut(segment_bytes.max(300)) {
                if let Some(header) = datagram.first_chunk_mut::<CHUNK_HEADER_BYTES>() {
                    let kind = header[7] % 2 * KIND_REPEATED;
                    header[7] %= 12;
                    header[..7].copy_from_slice(&[VERSION << 4 | kind, 255, 255, 255, 0, 0, 0]);
                    header[8..12].copy_from_slice(&total.to_be_bytes());
                    header[12..].copy_from_slice(&offset.to_be_bytes());
                }
            }
            receiver.now_ms += 1;
            receiver.receive(&bytes, segment_bytes);
            receiver.expire_at(receiver.now_ms);
        }
    }
}

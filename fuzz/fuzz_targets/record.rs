//! Any words as a record. The first byte is the kind, the next two the length. What parses says the same again when it is emitted.
#![no_main]

use isthmus_layout::record::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[kind, low, high], body)) = input.split_first_chunk() else { return };
    let words: Vec<u32> = body.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let bytes = u16::from_le_bytes([low, high]);
    if let Ok((route, record)) = Record::parse(kind, bytes, &words) {
        let emitted = record.emit(route);
        let mut again = emitted.words[..emitted.count].to_vec();
        if let Record::Eager { words, .. } = record {
            again.extend_from_slice(words);
        }
        assert_eq!(Record::parse(emitted.kind, bytes, &again), Ok((route, record)));
    }
});

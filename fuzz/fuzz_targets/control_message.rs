//! Any bytes as a control message, both ways. The first byte is the number of file descriptors. What parses has no other bytes.
#![no_main]

use isthmus_layout::control::{ToClient, ToDaemon};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&descriptors, packet)) = input.split_first() else { return };
    if let Ok((serial, message)) = ToDaemon::parse(packet, usize::from(descriptors)) {
        assert_eq!(message.emit(serial), packet);
    }
    if let Ok((serial, message)) = ToClient::parse(packet, usize::from(descriptors)) {
        assert_eq!(message.emit(serial), packet);
    }
});

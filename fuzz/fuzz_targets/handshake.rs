//! Any bytes as the first packet of a connection: the daemon always has an answer, and a library understands it.
#![no_main]

use isthmus_layout::control::version::reply_to_hello;
use isthmus_layout::control::{Name, VersionRange, ToClient};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    let Ok(name) = Name::new("isthmusd") else { return };
    let (serial, answer, outcome) = reply_to_hello(packet, 0, VersionRange::CURRENT, name);
    assert_eq!(matches!(answer, ToClient::HelloReply(_)), outcome.is_ok());
    assert_eq!(ToClient::parse(&answer.emit(serial), 0), Ok((serial, answer)));
});

//! Any bytes as the first packet of a connection: the daemon always has an answer, and a library understands it.
#![no_main]

use isthmus_layout::control::version::greet;
use isthmus_layout::control::{Name, Spoken, ToClient};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    let Ok(name) = Name::new("isthmusd") else { return };
    let (serial, answer, outcome) = greet(packet, 0, Spoken::CURRENT, name);
    assert_eq!(matches!(answer, ToClient::HelloBack(_)), outcome.is_ok());
    assert_eq!(ToClient::parse(&answer.emit(serial), 0), Ok((serial, answer)));
});

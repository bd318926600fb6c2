//! Tests of the packets of MX over Ethernet: the specification's sample frames, round trips, refusals, and the page
//! that documents them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod corpus;
mod refusals;
mod round_trips;
mod samples;
mod spec;
mod spec_packets;
mod vectors;

use isthmus_mx::wire::{Dialect, EmitError, Header, Packet, emit};

const DIALECTS: [Dialect; 2] = [Dialect::Mx, Dialect::OPEN_MX];

/// Returns a packet as a frame.
fn frame(dialect: Dialect, header: &Header, packet: &Packet<impl AsRef<[u8]>>) -> Result<Vec<u8>, EmitError> {
    let mut buffer = vec![0xee; 70_000];
    let bytes = emit(dialect, header, packet, &mut buffer)?;
    buffer.truncate(bytes);
    Ok(buffer)
}

//! Regions of guests' programs: pieces of a window, which are less than channels.

use isthmus_layout::border::{FrameKind, Handed, Packet, WindowNumber, Withdrawn};
use isthmus_layout::control::*;
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::reason::Reason;
use isthmus_shm::Payload as _;

use crate::bed::Bed;
use crate::guest::{Guest, configured, status};

const MIB: u64 = 1 << 20;

fn start(window_mib: u64, more: &str) -> (Bed, Guest) {
    let bed = Bed::with(&format!("{}{more}", configured("web", window_mib, 64)));
    let guest = Guest::start(&bed);
    (bed, guest)
}

/// A place in a window.
type Place = (WindowNumber, u64, u64, u32);

/// A region is made: what its owner, at connection 1, and its reader are handed.
fn made(guest: &mut Guest, reader: u32, region: u64) -> (Place, Place) {
    let (mut home, mut view) = (None, None);
    while home.is_none() || view.is_none() {
        let (to, message, handed) = guest.hear_any();
        match (message, &handed[..]) {
            (ToClient::RegionMade(made), &[Handed::Home { window, offset, bytes, age }]) => {
                assert_eq!((to, made.region), (1, RegionId(region)));
                home = Some((window, offset, bytes, age));
            }
            (ToClient::Granted(granted), &[Handed::View { window, offset, bytes, age }]) => {
                assert_eq!((to, granted.region, granted.start), (reader, RegionId(region), 0));
                view = Some((window, offset, bytes, age));
            }
            (other, _) => panic!("{to}: {other:?} {handed:?}"),
        }
    }
    (home.unwrap(), view.unwrap())
}

fn refused(guest: &mut Guest, peer: DomainId, bytes: u64) -> Reason {
    guest.say(1, MakeRegion { peer, region: RegionId(99), bytes });
    match guest.hear(1).0 {
        ToClient::Refused(refused) => refused.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_is_its_owners_and_is_read_by_whom_it_was_made_for() {
    let (bed, mut guest) = start(32, "");
    let [_, two, three] = [1, 2, 3].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    let region = RegionId(7);
    guest.say(1, MakeRegion { peer: two, region, bytes: MIB });
    let (home, view) = made(&mut guest, 2, 7);
    assert_eq!((home, home.2), (view, MIB));
    guest.say(1, MakeRegion { peer: three, region, bytes: MIB });
    assert_eq!(made(&mut guest, 3, 7), (home, home), "it is there already");
    assert_eq!(refused(&mut guest, two, 4095), Reason::RegionsFull);
    assert_eq!(refused(&mut guest, two, 0), Reason::RegionsFull);
    assert_eq!(refused(&mut guest, two, 15 * MIB + 4096), Reason::RegionsFull, "half of the window, and it has one");
    let (_local, welcomed) = bed.attached("local");
    assert_eq!(refused(&mut guest, welcomed.id(), MIB), Reason::NoCommonMemory);
    guest.say(1, MakeRegion { peer: two, region, bytes: 2 * MIB });
    assert!(matches!(guest.hear(1).0, ToClient::Refused(refused) if refused.reason == Reason::RegionTooSmall));
    // It is there as long as somebody reads it.
    guest.say(1, Revoke { peer: two, region });
    assert!(matches!(guest.hear(2).0, ToClient::Revoked(revoked) if revoked.region == region));
    guest.say(1, Revoke { peer: three, region });
    let (mut revoked, mut withdrawn) = (false, false);
    while !revoked || !withdrawn {
        let (frame, content) = guest.next();
        if frame.kind == FrameKind::Withdrawn {
            let ours = Withdrawn { window: home.0, offset: home.1, age: home.3 };
            withdrawn |= Withdrawn::parse(&content).unwrap() == ours;
        } else {
            let packet = Packet::parse(&content).unwrap();
            let (_, message) = ToClient::parse(packet.message, packet.handed.len()).unwrap();
            revoked |= matches!(message, ToClient::Revoked(revoked) if revoked.region == region);
        }
    }
}

#[test]
fn bytes_are_nobody_elses_before_the_guest_has_taken_them_away() {
    let (bed, mut guest) = start(32, "");
    let [_, two] = [1, 2].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    guest.say(1, MakeRegion { peer: two, region: RegionId(1), bytes: MIB });
    let ((_, offset, ..), _) = made(&mut guest, 2, 1);
    guest.memory.copy_in(offset, b"its own");
    guest.answers = false;
    guest.say(1, Revoke { peer: two, region: RegionId(1) });
    // The reader is told as well.
    let (one, other) = (guest.next(), guest.next());
    let (_, withdrawn) = [one, other].into_iter().find(|(frame, _)| frame.kind == FrameKind::Withdrawn).unwrap();
    let before = guest_used(&bed);
    guest.say(1, MakeRegion { peer: two, region: RegionId(2), bytes: MIB });
    let ((_, elsewhere, ..), _) = made(&mut guest, 2, 2);
    let mut found = [0; 7];
    guest.memory.copy_out(offset, &mut found);
    assert_eq!((&found, elsewhere != offset), (b"its own", true), "the host waits for the guest's word");
    guest.frame(FrameKind::Away, 0, &withdrawn);
    let begun = std::time::Instant::now();
    while guest_used(&bed) != before {
        assert!(begun.elapsed().as_secs() < 20, "nothing has become free");
        std::thread::yield_now();
    }
}

/// Bytes of the guest's window that are not free.
fn guest_used(bed: &Bed) -> Option<u64> {
    status(bed).guests.unwrap().remove(0).used_bytes
}

#[test]
fn what_is_no_guests_has_regions_of_its_own() {
    let (bed, _guest) = start(32, "");
    let (mut one, _) = bed.attached("one");
    let (_two, welcomed) = bed.attached("two");
    let asked = MakeRegion { peer: welcomed.id(), region: RegionId(1), bytes: MIB };
    assert_eq!(one.ask(asked, &[]).unwrap_err(), Reason::NoCommonMemory);
}

#[test]
fn a_channel_that_finds_no_room_gets_that_of_regions() {
    let (_bed, mut guest) = start(4, "[limits]\nslab_kib = 64\n");
    let [_, two] = [1, 2].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    guest.say(1, MakeRegion { peer: two, region: RegionId(1), bytes: 2 * MIB });
    made(&mut guest, 2, 1);
    let full = (3..).find(|&at| guest.attach(at, &format!("n{at}")).is_err()).unwrap();
    assert!(full > 4, "the other half is everybody's");
    let (mut revoked, mut withdrawn, mut attempt) = (false, false, 1);
    guest.say(1, RequestChannel { peer: two, attempt });
    loop {
        let (frame, content) = guest.next();
        if frame.kind == FrameKind::Withdrawn {
            withdrawn = true;
            continue;
        }
        let packet = Packet::parse(&content).unwrap();
        match ToClient::parse(packet.message, packet.handed.len()).unwrap().1 {
            ToClient::Revoked(_) => revoked = true,
            ToClient::ChannelRefused(refused) => {
                assert_eq!((refused.reason, refused.last), (Reason::OutOfMemory, false));
                attempt += 1;
                guest.say(1, RequestChannel { peer: two, attempt });
            }
            ToClient::ChannelOffer(_) => break,
            _ => {}
        }
    }
    assert!(revoked && withdrawn && attempt > 1);
}

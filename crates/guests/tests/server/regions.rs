//! Regions of guests' programs: extents of a window, which are revoked if channels need the memory.

use isthmus_layout::control::*;
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::proxy::{ControlPacket, ProxyFrameKind, ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_shm::Payload as _;

use crate::guest::{Guest, configured, status};
use crate::testbed::Testbed;

const MIB: u64 = 1 << 20;

fn start(window_mib: u64, more: &str) -> (Testbed, Guest) {
    let bed = Testbed::with(&format!("{}{more}", configured("web", window_mib, 64)));
    let guest = Guest::start(&bed);
    (bed, guest)
}

/// An extent of a window: its window, offset, bytes and generation.
type Extent = (WindowId, u64, u64, u32);

/// Creates a region. Returns the extents that its owner, at connection 1, and its reader receive.
fn made(guest: &mut Guest, reader: u32, region: u64) -> (Extent, Extent) {
    let (mut private, mut read_only) = (None, None);
    while private.is_none() || read_only.is_none() {
        let (to, message, resources) = guest.receive_any();
        match (message, &resources[..]) {
            (ToClient::RegionCreated(made), &[ResourceRef::PrivateExtent { window, offset, bytes, generation }]) => {
                assert_eq!((to, made.region), (1, RegionId(region)));
                private = Some((window, offset, bytes, generation));
            }
            (ToClient::Granted(granted), &[ResourceRef::ReadOnlyExtent { window, offset, bytes, generation }]) => {
                assert_eq!((to, granted.region, granted.start), (reader, RegionId(region), 0));
                read_only = Some((window, offset, bytes, generation));
            }
            (other, _) => panic!("{to}: {other:?} {resources:?}"),
        }
    }
    (private.unwrap(), read_only.unwrap())
}

fn refused(guest: &mut Guest, peer: DomainId, bytes: u64) -> Reason {
    guest.send(1, CreateRegion { peer, region: RegionId(99), bytes });
    match guest.receive_message(1).0 {
        ToClient::Refused(refused) => refused.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn region_is_writable_for_its_owner_and_readable_for_its_peer() {
    let (bed, mut guest) = start(32, "");
    let [_, two, three] = [1, 2, 3].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    let region = RegionId(7);
    guest.send(1, CreateRegion { peer: two, region, bytes: MIB });
    let (private, read_only) = made(&mut guest, 2, 7);
    assert_eq!((private, private.2), (read_only, MIB));
    guest.send(1, CreateRegion { peer: three, region, bytes: MIB });
    assert_eq!(made(&mut guest, 3, 7), (private, private), "it is there already");
    assert_eq!(refused(&mut guest, two, 4095), Reason::RegionsFull);
    assert_eq!(refused(&mut guest, two, 0), Reason::RegionsFull);
    assert_eq!(refused(&mut guest, two, 15 * MIB + 4096), Reason::RegionsFull, "half of the window, and it has one");
    let (_local, welcomed) = bed.attached("local");
    assert_eq!(refused(&mut guest, welcomed.id(), MIB), Reason::NoSharedMemory);
    guest.send(1, CreateRegion { peer: two, region, bytes: 2 * MIB });
    assert!(
        matches!(guest.receive_message(1).0, ToClient::Refused(refused) if refused.reason == Reason::RegionTooSmall)
    );
    // The region exists as long as it has a reader.
    guest.send(1, Revoke { peer: two, region });
    assert!(matches!(guest.receive_message(2).0, ToClient::Revoked(revoked) if revoked.region == region));
    guest.send(1, Revoke { peer: three, region });
    let (mut revoked, mut extent_revoked) = (false, false);
    while !revoked || !extent_revoked {
        let (frame, content) = guest.next();
        if frame.kind == ProxyFrameKind::RevokedExtent {
            let ours = RevokedExtent { window: private.0, offset: private.1, generation: private.3 };
            extent_revoked |= RevokedExtent::parse(&content).unwrap() == ours;
        } else {
            let packet = ControlPacket::parse(&content).unwrap();
            let (_, message) = ToClient::parse(packet.message, packet.resources.len()).unwrap();
            revoked |= matches!(message, ToClient::Revoked(revoked) if revoked.region == region);
        }
    }
}

#[test]
fn does_not_reuse_an_extent_before_the_guest_has_reclaimed_it() {
    let (bed, mut guest) = start(32, "");
    let [_, two] = [1, 2].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    guest.send(1, CreateRegion { peer: two, region: RegionId(1), bytes: MIB });
    let ((_, offset, ..), _) = made(&mut guest, 2, 1);
    guest.memory.copy_in(offset, b"its own");
    guest.answers = false;
    guest.send(1, Revoke { peer: two, region: RegionId(1) });
    // The reader is notified as well.
    let (one, other) = (guest.next(), guest.next());
    let (_, revoked) = [one, other].into_iter().find(|(frame, _)| frame.kind == ProxyFrameKind::RevokedExtent).unwrap();
    let before = guest_used(&bed);
    guest.send(1, CreateRegion { peer: two, region: RegionId(2), bytes: MIB });
    let ((_, elsewhere, ..), _) = made(&mut guest, 2, 2);
    let mut found = [0; 7];
    guest.memory.copy_out(offset, &mut found);
    assert_eq!((&found, elsewhere != offset), (b"its own", true), "the host waits for the guest's word");
    guest.frame(ProxyFrameKind::Reclaimed, 0, &revoked);
    let begun = std::time::Instant::now();
    while guest_used(&bed) != before {
        assert!(begun.elapsed().as_secs() < 20, "nothing has become free");
        std::thread::yield_now();
    }
}

/// Returns the used bytes of the guest's window.
fn guest_used(bed: &Testbed) -> Option<u64> {
    status(bed).guests.unwrap().remove(0).used_bytes
}

#[test]
fn refuses_create_region_outside_guests() {
    let (bed, _guest) = start(32, "");
    let (mut one, _) = bed.attached("one");
    let (_two, welcomed) = bed.attached("two");
    let request = CreateRegion { peer: welcomed.id(), region: RegionId(1), bytes: MIB };
    assert_eq!(one.request(request, &[]).unwrap_err(), Reason::NoSharedMemory);
}

#[test]
fn channel_takes_the_room_of_regions_when_the_window_is_full() {
    let (_bed, mut guest) = start(4, "[limits]\nslab_kib = 64\n");
    let [_, two] = [1, 2].map(|at| guest.attach(at, &format!("n{at}")).unwrap().0.domain);
    guest.send(1, CreateRegion { peer: two, region: RegionId(1), bytes: 2 * MIB });
    made(&mut guest, 2, 1);
    let full = (3..).find(|&at| guest.attach(at, &format!("n{at}")).is_err()).unwrap();
    assert!(full > 4, "the other half is everybody's");
    let (mut revoked, mut extent_revoked, mut attempt) = (false, false, 1);
    guest.send(1, RequestChannel { peer: two, attempt });
    loop {
        let (frame, content) = guest.next();
        if frame.kind == ProxyFrameKind::RevokedExtent {
            extent_revoked = true;
            continue;
        }
        let packet = ControlPacket::parse(&content).unwrap();
        match ToClient::parse(packet.message, packet.resources.len()).unwrap().1 {
            ToClient::Revoked(_) => revoked = true,
            ToClient::ChannelRefused(refused) => {
                assert_eq!((refused.reason, refused.permanent), (Reason::OutOfMemory, false));
                attempt += 1;
                guest.send(1, RequestChannel { peer: two, attempt });
            }
            ToClient::ChannelOffer(_) => break,
            _ => {}
        }
    }
    assert!(revoked && extent_revoked && attempt > 1);
}

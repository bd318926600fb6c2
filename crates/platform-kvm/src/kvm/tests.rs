//! The suite over a device that QEMU is not there for: both sides are the host's, of the same window.

use super::*;
use isthmus_platform::Ring;
use isthmus_platform::conformance::check_in_process;
use rustix::fd::OwnedFd;

const WINDOW: RegionSize = RegionSize(4 << 20);

/// The host's and the guest's side, as if the driver had made it.
fn sides() -> (Both, Both) {
    let shape = crate::DeviceLayout::new(WINDOW, 3, 4).unwrap();
    let host = ServerGuest::new(shape, None).unwrap();
    let copies = |fds: &[OwnedFd]| fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
    let guest = ServerGuest {
        window: host.window.try_clone().unwrap(),
        size: host.size,
        to_guest: copies(&host.from_guest),
        from_guest: copies(&host.to_guest),
        process: None,
    };
    (Both { guest: host, side: Side::Host }, Both { guest, side: Side::Guest })
}

struct Both {
    guest: ServerGuest,
    side: Side,
}

impl DeviceSide for Both {
    fn side(&self) -> Side {
        self.side
    }
    fn window(&self) -> RegionSize {
        self.guest.size
    }
    fn vectors(&self) -> u16 {
        self.guest.vectors()
    }
    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        DeviceSide::map(&self.guest, at, size, access)
    }
    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        DeviceSide::listener(&self.guest, vector)
    }
    fn doorbell_sender(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        DeviceSide::doorbell_sender(&self.guest, vector)
    }
}

#[test]
fn kvm_passes() {
    let (host, guest) = sides();
    check_in_process(&Kvm::new(host), &(), &Kvm::new(guest), &());
}

#[test]
fn each_side_allocates_in_its_own_half() {
    let (host, guest) = sides();
    let (host, guest) = (Kvm::new(host), Kvm::new(guest));
    let size = RegionSize(64 << 10);
    for (kvm, other) in [(&host, &guest), (&guest, &host)] {
        let mut held = Vec::new();
        while let Ok(memory) = kvm.allocate(size, &(), Access::ReadWrite) {
            let grant = kvm.grant(&memory, &(), Access::ReadWrite).unwrap();
            assert!(other.map(grant, size, Access::ReadWrite).is_ok(), "{grant:?}");
            held.push(memory);
        }
        let (from, to) = allocation_range(WINDOW, kvm.device_side().side());
        assert_eq!(held.len() as u64, (to - from) / size.0);
        // What comes back is found again.
        held.swap_remove(3);
        held.swap_remove(7);
        assert!(kvm.allocate(RegionSize(2 * size.0), &(), Access::ReadWrite).is_err());
        held.push(kvm.allocate(size, &(), Access::ReadWrite).unwrap());
        held.push(kvm.allocate(size, &(), Access::ReadWrite).unwrap());
        assert!(kvm.allocate(size, &(), Access::ReadWrite).is_err());
    }
    for size in [0, u64::MAX] {
        assert!(host.allocate(RegionSize(size), &(), Access::ReadWrite).is_err());
    }
}

#[test]
fn a_vector_serves_one_listener_after_the_other() {
    let (host, guest) = sides();
    let (host, guest) = (Kvm::new(host), Kvm::new(guest));
    let (first, doorbell) = host.doorbell(&()).unwrap();
    let (_second, other) = host.doorbell(&()).unwrap();
    assert_ne!(doorbell, other);
    assert!(host.doorbell(&()).is_err(), "the vector of the proxy ring is reserved");
    let ringer = guest.doorbell_sender(doorbell).unwrap();
    ringer.ring();
    drop(first);
    let (third, again) = host.doorbell(&()).unwrap();
    assert_eq!(again, doorbell);
    assert!(!third.wait(Duration::ZERO), "a ring for the previous listener");
    ringer.ring();
    assert!(third.wait(Duration::ZERO));
    assert!(guest.doorbell_sender(Vector(3)).is_err());
}

#[test]
fn places_and_vectors_travel_as_bytes() {
    for access in [Access::Read, Access::ReadWrite] {
        let place = WindowRange { at: 0x12_3000, bytes: 4096, access };
        assert_eq!(WindowRange::parse(&place.emit()), Some(place));
    }
    assert_eq!(Vector::parse(&Vector(513).emit()), Some(Vector(513)));
    let mut wrong = WindowRange { at: 0, bytes: 4096, access: Access::Read }.emit();
    for cut in 0..wrong.len() {
        assert_eq!(WindowRange::parse(&wrong[..cut]), None, "{cut}");
    }
    wrong[16] = 2;
    assert_eq!(WindowRange::parse(&wrong), None);
    assert_eq!((Vector::parse(&[]), Vector::parse(&[1, 2, 3])), (None, None));
}

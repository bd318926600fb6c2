//! The suite over a device that QEMU is not there for: both halves are the host's, of the same window.

use super::*;
use isthmus_platform::Ring;
use isthmus_platform::conformance::check_here;
use rustix::fd::OwnedFd;

const WINDOW: RegionSize = RegionSize(4 << 20);

/// The guest's half, as if the driver had made it.
fn halves() -> (Both, Both) {
    let shape = crate::Shape::new(WINDOW, 3, 4).unwrap();
    let host = Guest::new(shape, None).unwrap();
    let copies = |fds: &[OwnedFd]| fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
    let guest = Guest {
        window: host.window.try_clone().unwrap(),
        size: host.size,
        outward: copies(&host.inward),
        inward: copies(&host.outward),
        process: None,
    };
    (Both { guest: host, end: End::Host }, Both { guest, end: End::Guest })
}

struct Both {
    guest: Guest,
    end: End,
}

impl Half for Both {
    fn end(&self) -> End {
        self.end
    }
    fn window(&self) -> RegionSize {
        self.guest.size
    }
    fn vectors(&self) -> u16 {
        self.guest.vectors()
    }
    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        Half::map(&self.guest, at, size, access)
    }
    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        Half::listener(&self.guest, vector)
    }
    fn ringer(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        Half::ringer(&self.guest, vector)
    }
}

#[test]
fn kvm_passes() {
    let (host, guest) = halves();
    check_here(&Kvm::new(host), &(), &Kvm::new(guest), &());
}

#[test]
fn each_side_allocates_in_its_own_part_until_that_is_full() {
    let (host, guest) = halves();
    let (host, guest) = (Kvm::new(host), Kvm::new(guest));
    let size = RegionSize(64 << 10);
    for (kvm, other) in [(&host, &guest), (&guest, &host)] {
        let mut held = Vec::new();
        while let Ok(memory) = kvm.allocate(size, &(), Access::ReadWrite) {
            let grant = kvm.grant(&memory, &(), Access::ReadWrite).unwrap();
            assert!(other.map(grant, size, Access::ReadWrite).is_ok(), "{grant:?}");
            held.push(memory);
        }
        let (from, to) = part(WINDOW, kvm.half().end());
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
    let (host, guest) = halves();
    let (host, guest) = (Kvm::new(host), Kvm::new(guest));
    let (first, bell) = host.doorbell(&()).unwrap();
    let (_second, other) = host.doorbell(&()).unwrap();
    assert_ne!(bell, other);
    assert!(host.doorbell(&()).is_err(), "the crossing's vector is nobody else's");
    let ringer = guest.ringer(bell).unwrap();
    ringer.ring();
    drop(first);
    let (third, again) = host.doorbell(&()).unwrap();
    assert_eq!(again, bell);
    assert!(!third.wait(Duration::ZERO), "a ring for whoever listened before");
    ringer.ring();
    assert!(third.wait(Duration::ZERO));
    assert!(guest.ringer(Vector(3)).is_err());
}

#[test]
fn places_and_vectors_travel_as_bytes() {
    for access in [Access::Read, Access::ReadWrite] {
        let place = Place { at: 0x12_3000, bytes: 4096, access };
        assert_eq!(Place::parse(&place.emit()), Some(place));
    }
    assert_eq!(Vector::parse(&Vector(513).emit()), Some(Vector(513)));
    let mut wrong = Place { at: 0, bytes: 4096, access: Access::Read }.emit();
    for cut in 0..wrong.len() {
        assert_eq!(Place::parse(&wrong[..cut]), None, "{cut}");
    }
    wrong[16] = 2;
    assert_eq!(Place::parse(&wrong), None);
    assert_eq!((Vector::parse(&[]), Vector::parse(&[1, 2, 3])), (None, None));
}

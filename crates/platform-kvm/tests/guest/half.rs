//! The guest's side of the tests with QEMU (`tests/guests`): the conformance suite over a serial line, and the requests that the driver
//! refuses.
//!
//! ```text
//!   guest_half suite NODE LINE     the suite, with the host on the other end of LINE
//!   guest_half driver NODE         checks the requests that the driver must refuse, and those that it must accept
//!   guest_half unplug NODE         maps extents, prints `mapped`, and continues after the device is unplugged
//!   guest_half bounce NODE BELLS WORDS
//!                                  returns this number of doorbells and words
//!   guest_half functions           names the ivshmem functions, each with its driver
//!   guest_half piece               a program without privileges, with an extent as its input
//! ```
#![allow(clippy::unwrap_used, reason = "a test")]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_platform::conformance::{CheckRole, LineTransport, check_side};
use isthmus_platform::{Doorbell, Listen, Ring};
use isthmus_platform_kvm::driver::{ABI, INFO, LISTEN, PIECE, RING, RINGER, WITHDRAW};
use isthmus_platform_kvm::{Device, GuestSide, HOST, Kvm, pci};
use isthmus_shm::window_extent::PrivateExtent;
use isthmus_shm::{Access, Mapping, Payload, SharedMapping, Words, window_extent};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

const PAGE: u64 = 4096;

/// The offset of this program's extents, beyond the part of the window that daemons use.
const AT: u64 = 1 << 19;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["suite", node, line] => suite(node, line),
        ["driver", node] => driver(node),
        ["unplug", node] => unplug(node),
        ["bounce", node, doorbells, words] => bounce(node, doorbells.parse()?, words.parse()?),
        ["functions"] => functions(),
        ["piece"] => without_privileges(),
        _ => Err("see the first lines of guest_half".into()),
    }
}

fn open(node: &str) -> Result<Device, Box<dyn Error>> {
    Ok(Device::open(Path::new(node))?)
}

fn suite(node: &str, line: &str) -> Result<(), Box<dyn Error>> {
    let to = File::options().read(true).write(true).open(line)?;
    let from = BufReader::new(to.try_clone()?);
    rustix::io::write(&to, b"\n")?; // The line is open: what is said now is heard.
    let kvm = Kvm::new(GuestSide::new(open(node)?)?);
    let mut passed = |name: &str| println!("ok {name}");
    check_side(CheckRole::Other, &kvm, &(), &mut LineTransport::new(from, to), &mut passed);
    let info = kvm.device_side().device().info()?;
    println!("memory type {}, seen in a mapping: {}", info.memory_type, info.mapped);
    Ok(())
}

/// A check: its name and its function.
type Check = (&'static str, fn(&Device));

fn driver(node: &str) -> Result<(), Box<dyn Error>> {
    let device = open(node)?;
    println!("{:?}", device.info()?);
    let checks: [Check; 12] = [
        ("a device reports its properties", says),
        ("extents outside of the window are refused", outside),
        ("an extent maps itself and nothing else", itself),
        ("an extent keeps its rights", rights),
        ("a revoked extent shows nothing", revoked),
        ("a private extent keeps its bytes", private_extent),
        ("a private extent reports where it is mapped", shown),
        ("a listener receives its vector until another replaces it", listeners),
        ("a doorbell sender rings and does nothing else", ringers),
        ("invalid requests are refused", nonsense),
        ("random requests are harmless", anything),
        ("many extents", many),
    ];
    for (name, check) in checks {
        check(&device);
        println!("ok {name}");
    }
    handed_on(&device);
    println!("ok a program without privileges can use what it was handed, and has nothing else");
    outlives(device);
    println!("ok an extent outlives the node");
    Ok(())
}

fn says(device: &Device) {
    let info = device.info().unwrap();
    assert_eq!(info.peer, Some(1));
    assert!(info.window.0.is_power_of_two() && info.vectors > 1, "{info:?}");
    assert!(!device.is_gone());
}

fn mapped_extent(device: &Device, at: u64, pages: u64, access: Access) -> (OwnedFd, SharedMapping) {
    let file = device.extent(at, pages * PAGE, access).unwrap();
    let window = SharedMapping::new(Mapping::new(&file, RegionSize(pages * PAGE), access).unwrap());
    (file, window)
}

fn errno<T>(result: Result<T, isthmus_platform::PlatformError>) -> Option<Errno> {
    match result {
        Err(isthmus_platform::PlatformError::Refused { source, .. }) => Some(source),
        _ => None,
    }
}

fn outside(device: &Device) {
    let end = device.info().unwrap().window.0;
    let refused = [
        (end, PAGE, Errno::RANGE),
        (0, end + PAGE, Errno::RANGE),
        (end - PAGE, 2 * PAGE, Errno::RANGE),
        (PAGE.wrapping_neg(), 2 * PAGE, Errno::RANGE),
        (PAGE, PAGE.wrapping_neg(), Errno::RANGE),
        (0, 0, Errno::INVAL),
        (0, PAGE - 1, Errno::INVAL),
        (1, PAGE, Errno::INVAL),
        (u64::MAX, u64::MAX, Errno::INVAL),
    ];
    for (offset, bytes, why) in refused {
        assert_eq!(errno(device.extent(offset, bytes, Access::ReadWrite)), Some(why), "{offset:#x} {bytes:#x}");
    }
    drop(device.extent(end - PAGE, PAGE, Access::Read).unwrap());
    drop(device.extent(0, end, Access::ReadWrite).unwrap());
}

/// Maps for a moment, as requested.
fn map(file: impl AsFd, at: u64, bytes: u64, protection: ProtFlags, flags: MapFlags) -> Result<(), Errno> {
    // SAFETY: a fresh mapping, used only below.
    let base = unsafe { rustix::mm::mmap(null_mut(), bytes as usize, protection, flags, file, at) }?;
    // SAFETY: the mapping made above.
    unsafe { rustix::mm::munmap(base, bytes as usize) }
}

fn itself(device: &Device) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let (_all, all) = mapped_extent(device, AT, 8, Access::ReadWrite);
    all.copy_in(0, &[0x11; 8 * PAGE as usize]);
    let (file, part) = mapped_extent(device, AT + 2 * PAGE, 3, Access::ReadWrite);
    part.copy_in(0, &[0x22; 3 * PAGE as usize]);
    let mut bytes = [0; 8 * PAGE as usize];
    all.copy_out(0, &mut bytes);
    for (page, bytes) in bytes.chunks(PAGE as usize).enumerate() {
        let wanted = if (2..5).contains(&page) { 0x22 } else { 0x11 };
        assert!(bytes.iter().all(|&byte| byte == wanted), "page {page}");
    }
    for (at, pages) in [(0, 4), (PAGE, 3), (3 * PAGE, 1), (1 << 40, 1), (PAGE.wrapping_neg(), 1), (0, 1 << 20)] {
        let mapped = map(&file, at, pages * PAGE, both, MapFlags::SHARED);
        assert!(matches!(mapped, Err(Errno::INVAL | Errno::OVERFLOW | Errno::NOMEM)), "{at:#x} {pages}: {mapped:?}");
    }
    assert_eq!(map(&file, 2 * PAGE, PAGE, both, MapFlags::SHARED), Ok(()));
    // The same later.
    // SAFETY: fresh mappings, used only below.
    unsafe {
        let base = rustix::mm::mmap(null_mut(), PAGE as usize, both, MapFlags::SHARED, &file, 0).unwrap();
        assert!(rustix::mm::mremap(base, PAGE as usize, 2 * PAGE as usize, MremapFlags::MAYMOVE).is_err());
        assert!(rustix::mm::mremap(base, 0, PAGE as usize, MremapFlags::MAYMOVE).is_err());
        let moved = rustix::mm::mremap(base, PAGE as usize, PAGE as usize, MremapFlags::MAYMOVE).unwrap();
        rustix::mm::munmap(moved, PAGE as usize).unwrap();
    }
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, 3 * PAGE);
    assert!(rustix::fs::ftruncate(&file, 1 << 20).is_err());
    assert!(rustix::io::read(&file, &mut [0; 8]).is_err() && rustix::io::write(&file, b"x").is_err());
    let extent = window_extent::extent(&file).unwrap();
    assert_eq!((extent.bytes, extent.access, extent.gone), (3 * PAGE, Access::ReadWrite, false));
    assert!(extent.memory_type != 0 && device.info().unwrap().mapped);
}

fn rights(device: &Device) {
    let (file, window) = mapped_extent(device, AT, 2, Access::Read);
    let (_writer, writer) = mapped_extent(device, AT, 2, Access::ReadWrite);
    writer.copy_in(9, b"later");
    let mut bytes = [0; 5];
    window.copy_out(9, &mut bytes);
    assert_eq!(&bytes, b"later");
    let (read, write, run) = (ProtFlags::READ, ProtFlags::WRITE, ProtFlags::EXEC);
    assert_eq!(map(&file, 0, PAGE, read | write, MapFlags::SHARED), Err(Errno::ACCESS));
    assert_eq!(map(&file, 0, PAGE, read, MapFlags::PRIVATE), Err(Errno::INVAL));
    assert_eq!(map(&file, 0, PAGE, read | write, MapFlags::PRIVATE), Err(Errno::INVAL));
    for access in [Access::Read, Access::ReadWrite] {
        let file = device.extent(AT, PAGE, access).unwrap();
        assert!(map(&file, 0, PAGE, read | run, MapFlags::SHARED).is_err());
        // SAFETY: fresh mappings, used only below.
        unsafe {
            let base = rustix::mm::mmap(null_mut(), PAGE as usize, read, MapFlags::SHARED, &file, 0).unwrap();
            let written = rustix::mm::mprotect(base, PAGE as usize, MprotectFlags::READ | MprotectFlags::WRITE);
            assert_eq!(written.is_ok(), access == Access::ReadWrite, "{written:?}");
            let run = rustix::mm::mprotect(base, PAGE as usize, MprotectFlags::READ | MprotectFlags::EXEC);
            assert_eq!(run, Err(Errno::ACCESS));
            rustix::mm::munmap(base, PAGE as usize).unwrap();
        }
        // It cannot be opened anew, with other rights.
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(rustix::fs::open(again, OFlags::RDWR, Mode::empty()).is_err());
    }
    assert_eq!(window_extent::extent(&file).map(|extent| extent.access), Some(Access::Read));
    assert!(Mapping::new(&file, RegionSize(2 * PAGE), Access::ReadWrite).is_err());
    assert!(Mapping::new(&file, RegionSize(3 * PAGE), Access::Read).is_err());
}

fn revoked(device: &Device) {
    let (_kept, kept) = mapped_extent(device, AT, 2, Access::ReadWrite);
    let (file, window) = mapped_extent(device, AT, 2, Access::ReadWrite);
    kept.copy_in(0, &[0x33; 2 * PAGE as usize]);
    assert_eq!(window.load(1024, Relaxed), 0x3333_3333);
    device.revoke(&file).unwrap();
    assert_eq!((window.load(0, Relaxed), window.load(1024, Relaxed)), (0, 0));
    window.store(7, 0x5555_5555, Relaxed);
    assert_eq!(window.load(7, Relaxed), 0x5555_5555);
    let anew = SharedMapping::new(Mapping::new(&file, RegionSize(2 * PAGE), Access::ReadWrite).unwrap());
    assert_eq!(anew.load(1023, Relaxed), 0);
    assert_eq!(kept.load(7, Relaxed), 0x3333_3333);
    assert!(window_extent::extent(&file).unwrap().gone);
    device.revoke(&file).unwrap();
}

/// A private extent of this number of pages, and a mapping of it.
fn mapped_private_extent(device: &Device, pages: u64) -> (PrivateExtent, SharedMapping) {
    let file = device.private_extent(AT, pages * PAGE).unwrap();
    let window = SharedMapping::new(Mapping::new(&file, RegionSize(pages * PAGE), Access::ReadWrite).unwrap());
    (PrivateExtent::new(file).unwrap(), window)
}

fn private_extent(device: &Device) {
    let (read, both) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
    type End = fn(&Device, &PrivateExtent);
    let ends: [End; 3] = [
        |_, private| private.make_private().unwrap(),
        |device, private| device.revoke(private).unwrap(),
        |device, private| [private.make_private().unwrap(), device.revoke(private).unwrap()].into_iter().collect(),
    ];
    for end in ends {
        let (_others, others) = mapped_extent(device, AT, 3, Access::ReadWrite);
        let (private, mine) = mapped_private_extent(device, 3);
        mine.copy_in(0, &[0x44; 3 * PAGE as usize]);
        assert_eq!(others.load(1024, Relaxed), 0x4444_4444, "shared");
        assert_eq!(map(&private, 0, PAGE, both, MapFlags::PRIVATE), Err(Errno::INVAL));
        end(device, &private);
        others.copy_in(0, &[0x55; 3 * PAGE as usize]);
        let mut bytes = [0; 3 * PAGE as usize];
        mine.copy_out(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0x44), "others' bytes are not ours");
        mine.store(2, 0x6666_6666, Relaxed);
        assert_eq!((mine.load(2, Relaxed), others.load(2, Relaxed)), (0x6666_6666, 0x5555_5555));
        assert!(
            private.extent().unwrap().gone
                && PrivateExtent::new(private.as_fd().try_clone_to_owned().unwrap()).is_none()
        );
        // SAFETY: fresh mappings, used by no other code, and unmapped once.
        unsafe {
            let base = rustix::mm::mmap(null_mut(), 3 * PAGE as usize, both, MapFlags::PRIVATE, &private, 0).unwrap();
            let word = base.cast::<u32>().add(2);
            assert_eq!(word.read_volatile(), 0x6666_6666);
            word.write_volatile(0x7777_7777);
            assert_eq!((word.read_volatile(), mine.load(2, Relaxed)), (0x7777_7777, 0x6666_6666), "a copy");
            device.revoke(&private).unwrap();
            assert_eq!((word.read_volatile(), word.add(2048).read_volatile()), (0x7777_7777, 0x4444_4444));
            // Private memory may grow; what was not there is empty.
            let grown = rustix::mm::mremap(base, 3 * PAGE as usize, 4 * PAGE as usize, MremapFlags::MAYMOVE).unwrap();
            assert_eq!(grown.cast::<u32>().add(3 * 1024).read_volatile(), 0);
            rustix::mm::munmap(grown, 4 * PAGE as usize).unwrap();
        }
    }
    assert_eq!(
        map(device.extent(AT, PAGE, Access::Read).unwrap(), 0, PAGE, read, MapFlags::PRIVATE),
        Err(Errno::INVAL)
    );
    // The process that created it is gone.
    let path = device.path().to_str().unwrap();
    let other = open(path).unwrap();
    let (private, mine) = mapped_private_extent(&other, 1);
    mine.store(0, 7, Relaxed);
    drop(other);
    let (_others, others) = mapped_extent(device, AT, 1, Access::ReadWrite);
    others.store(0, 8, Relaxed);
    assert!(mine.load(0, Relaxed) == 7 && private.extent().unwrap().gone);
}

fn shown(device: &Device) {
    let (private, mine) = mapped_private_extent(device, 4);
    let start = mine.pointer(0, 1).unwrap().as_ptr().addr();
    let page = PAGE as usize;
    let range = |from: usize, to: usize| start + from * page..start + to * page;
    assert_eq!(private.is_mapped_at(&range(0, 4), 0), Ok(true));
    assert_eq!(private.is_mapped_at(&range(1, 3), PAGE), Ok(true));
    assert_eq!(private.is_mapped_at(&range(1, 3), 0), Ok(false), "another place of it");
    assert_eq!(private.is_mapped_at(&range(3, 5), 3 * PAGE), Ok(false), "something else behind it");
    assert_eq!(private.is_mapped_at(&(start + 1..start + page), 0), Err(Errno::INVAL));
    assert_eq!(private.is_mapped_at(&(0..usize::MAX & !(page - 1)), 0), Err(Errno::INVAL));
    let (_other, other) = mapped_private_extent(device, 4);
    let elsewhere = other.pointer(0, 1).unwrap().as_ptr().addr();
    assert_eq!(
        private.is_mapped_at(&(elsewhere..elsewhere + page), 0),
        Ok(false),
        "the same bytes by another descriptor"
    );
    // SAFETY: a mapping of our own, which no other code touches.
    unsafe { rustix::mm::mprotect(start as *mut _, page, MprotectFlags::empty()) }.unwrap();
    assert_eq!(private.is_mapped_at(&range(0, 4), 0), Ok(false), "it cannot be read");
    assert_eq!(private.is_mapped_at(&range(1, 4), PAGE), Ok(true));
    private.make_private().unwrap();
    assert_eq!(private.is_mapped_at(&range(1, 4), PAGE), Ok(false), "it is not shared any more");
}

fn listeners(device: &Device) {
    let path = device.path().to_str().unwrap();
    let other = open(path).unwrap();
    let (first, second) = (device.listener(1).unwrap(), device.listener(1).unwrap());
    assert_eq!(errno(other.listener(1)), Some(Errno::BUSY));
    assert_eq!(errno(device.listener(64)), Some(Errno::INVAL));
    assert_eq!(errno(device.listener(u16::MAX)), Some(Errno::INVAL));
    assert!(errno(device.listen(1, Some(std::io::stdin().as_fd()))).is_some());
    // We are peer 1, and may ring ourselves.
    let (first, second) = (Doorbell::from(first), Doorbell::from(second));
    assert!(device.ring(1, 1));
    assert!(second.wait(Duration::from_secs(60)));
    assert!(!first.wait(Duration::ZERO));
    device.listen(1, None).unwrap();
    let listener = Doorbell::from(other.listener(1).unwrap());
    assert!(device.ring(1, 1));
    assert!(listener.wait(Duration::from_secs(60)));
    drop(other);
    drop(device.listener(1).unwrap());
    device.listen(1, None).unwrap();
}

fn ringers(device: &Device) {
    let listener = Doorbell::from(device.listener(1).unwrap());
    let ringer = device.doorbell_sender(1, 1).unwrap();
    assert!(rustix::io::read(&ringer, &mut [0; 8]).is_err());
    assert!(map(&ringer, 0, PAGE, ProtFlags::READ, MapFlags::SHARED).is_err());
    assert_eq!(window_extent::extent(&ringer), None);
    let again = format!("/proc/self/fd/{}", ringer.as_raw_fd());
    assert!(rustix::fs::open(again, OFlags::WRONLY, Mode::empty()).is_err());
    Doorbell::from(ringer).ring();
    assert!(listener.wait(Duration::from_secs(60)));
    // Ringing a peer or vector that does not exist has no effect.
    for (peer, vector) in [(77, 0), (HOST, 63), (u16::MAX, u16::MAX)] {
        Doorbell::from(device.doorbell_sender(peer, vector).unwrap()).ring();
        assert!(device.ring(peer, vector));
    }
    device.listen(1, None).unwrap();
}

/// A request with any number and any bytes.
struct Request {
    opcode: Opcode,
    bytes: [u8; 64],
}

// SAFETY: no request of the driver is longer than 64 bytes, which lie in memory of our own and have any value; what the driver does with
// descriptors it finds there it does to descriptors of this program's own making.
unsafe impl Ioctl for &mut Request {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.opcode
    }
    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.bytes.as_mut_ptr().cast()
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut rustix::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// Sends a request, and closes a descriptor in the reply.
fn ask(file: impl AsFd, opcode: Opcode, bytes: &[u8]) -> Result<i32, Errno> {
    let mut request = Request { opcode, bytes: [0; 64] };
    request.bytes[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: as `Request` says.
    let answer = unsafe { ioctl(file, &mut request) }?;
    let at = match opcode {
        PIECE => 24,
        RINGER => 12,
        _ => return Ok(answer),
    };
    let number = i32::from_ne_bytes(request.bytes[at..at + 4].try_into().unwrap());
    // SAFETY: the driver has opened it for us just now.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(answer)
}

/// The fields of a request, four bytes each.
fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn nonsense(device: &Device) {
    let ones = u32::MAX;
    let piece = device.extent(AT, PAGE, Access::Read).unwrap();
    let ringer = device.doorbell_sender(1, 1).unwrap();
    let of = |file: &OwnedFd| file.as_raw_fd() as u32;
    let fields = |[a, b, c, d, e, f, g, h]: [u32; 8]| words([a, b, c, d, e, f, g, h]);
    let page = PAGE as u32;
    let refused: [(Opcode, Vec<u8>, Errno); 16] = [
        (PIECE, fields([ABI + 1, 1, 0, 0, page, 0, 0, 0]), Errno::INVAL),
        (PIECE, fields([ABI, 1, 0, 0, page, 0, 0, 1]), Errno::INVAL),
        (PIECE, fields([ABI, 0, 0, 0, page, 0, 0, 0]), Errno::INVAL),
        (PIECE, fields([ABI, 2, 0, 0, page, 0, 0, 0]), Errno::INVAL),
        (PIECE, fields([ABI, 5, 0, 0, page, 0, 0, 0]), Errno::INVAL),
        (WITHDRAW, words([0, of(&piece)]), Errno::INVAL),
        (WITHDRAW, words([ABI, of(&ringer)]), Errno::INVAL),
        (WITHDRAW, words([ABI, 0]), Errno::INVAL),
        (WITHDRAW, words([ABI, ones]), Errno::BADF),
        (LISTEN, words([ABI, 1, ones, 1]), Errno::INVAL),
        (LISTEN, words([ABI, ones, ones, 0]), Errno::INVAL),
        (LISTEN, words([ABI, 1, 1 << 20, 0]), Errno::BADF),
        (LISTEN, words([ABI, 1, of(&piece), 0]), Errno::INVAL),
        (RINGER, words([ABI, 1 << 16, 0, 0]), Errno::INVAL),
        (RING, words([ABI, 0, 1 << 16, 0]), Errno::INVAL),
        (RING, words([ABI, 0, 0, 1]), Errno::INVAL),
    ];
    for (opcode, bytes, why) in refused {
        assert_eq!(ask(device, opcode, &bytes), Err(why), "{opcode:#x} {bytes:?}");
    }
    for opcode in [0, ones as Opcode, INFO ^ 1 << 16, window_extent::EXTENT] {
        assert_eq!(ask(device, opcode, &[]), Err(Errno::NOTTY), "{opcode:#x}");
    }
    assert_eq!(ask(&piece, INFO, &[]), Err(Errno::NOTTY));
    assert_eq!(ask(&ringer, RING, &[]), Err(Errno::NOTTY));
    assert!(!window_extent::extent(&piece).unwrap().gone);
}

fn anything(device: &Device) {
    let mut state = 0x9e37_79b9_u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let piece = device.extent(AT, 4 * PAGE, Access::ReadWrite).unwrap();
    let numbers = [INFO, PIECE, WITHDRAW, LISTEN, RINGER, RING, window_extent::EXTENT];
    for round in 0..20_000 {
        let mut fields: [u32; 16] = std::array::from_fn(|_| match random() % 4 {
            0 => random() % 8,
            1 => (random() % 64) << 12,
            2 => 1 << (random() % 32),
            _ => random(),
        });
        if round % 4 != 0 {
            fields[0] = ABI;
        }
        let opcode = numbers[random() as usize % numbers.len()];
        match round % 8 {
            0 => drop(ask(&piece, opcode, &words(fields))),
            _ => drop(ask(device, opcode, &words(fields))),
        }
    }
    device.listen(1, None).unwrap();
    says(device);
}

fn many(device: &Device) {
    for _ in 0..4 {
        let pieces: Vec<_> =
            (0..200).map(|at| mapped_extent(device, AT + at % 16 * PAGE, 1 + at % 5, Access::ReadWrite)).collect();
        for (at, (_, window)) in (0..).zip(&pieces) {
            window.store(3, at, Relaxed);
        }
        assert_eq!(pieces[199].1.load(3, Relaxed), 199);
        pieces.iter().step_by(2).for_each(|(file, _)| device.revoke(file).unwrap());
        assert_eq!((pieces[198].1.load(3, Relaxed), pieces[199].1.load(3, Relaxed)), (0, 199));
    }
}

fn handed_on(device: &Device) {
    let (file, window) = mapped_extent(device, AT, 2, Access::ReadWrite);
    window.store(0, 1, Relaxed);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.arg("piece").stdin(Stdio::from(file)).uid(65534).gid(65534);
    assert!(child.status().unwrap().success());
    assert_eq!(window.load(0, Relaxed), 2);
}

fn without_privileges() -> Result<(), Box<dyn Error>> {
    let input = std::io::stdin();
    let window = SharedMapping::new(Mapping::new(&input, RegionSize(2 * PAGE), Access::ReadWrite)?);
    assert_eq!(window.load(0, Relaxed), 1);
    window.store(0, 2, Relaxed);
    assert!(Device::open(Path::new("/dev/isthmus0")).is_err());
    let mapped = map(&input, 0, 3 * PAGE, ProtFlags::READ, MapFlags::SHARED);
    assert_eq!(mapped, Err(Errno::INVAL));
    Ok(())
}

fn outlives(device: Device) {
    let (_file, window) = mapped_extent(&device, AT, 2, Access::ReadWrite);
    let ringer = device.doorbell_sender(1, 1).unwrap();
    let path = device.path().to_owned();
    let event = device.listener(1).unwrap();
    drop(device);
    window.store(0, 7, Relaxed);
    let device = Device::open(&path).unwrap();
    let (_file, other) = mapped_extent(&device, AT, 2, Access::Read);
    assert_eq!(other.load(0, Relaxed), 7);
    let listener = Doorbell::from(device.listener(1).unwrap());
    Doorbell::from(ringer).ring();
    assert!(listener.wait(Duration::from_secs(60)));
    assert!(!Doorbell::from(event).wait(Duration::ZERO), "a listener receives rings after its node was closed");
}

/// Waits until a condition is true.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// Maps, writes, revokes and drops extents until the device is gone.
fn come_and_go(device: &Device, pages: u64) {
    for round in 0_u32.. {
        let file = match device.extent(AT + (1 << 22), pages * PAGE, Access::ReadWrite) {
            Ok(file) => file,
            Err(error) => return assert_eq!(errno::<()>(Err(error)), Some(Errno::NODEV)),
        };
        let window = SharedMapping::new(Mapping::new(&file, RegionSize(pages * PAGE), Access::ReadWrite).unwrap());
        (0..pages as u32).for_each(|page| window.store(page * 1024, page, Relaxed));
        if round % 2 == 0 {
            match device.revoke(&file) {
                Ok(()) => assert_eq!(window.load(7, Relaxed), 0),
                Err(error) => return assert_eq!(errno::<()>(Err(error)), Some(Errno::NODEV)),
            }
        }
        (0..pages as u32).for_each(|page| window.store(page * 1024, page, Relaxed));
    }
}

/// Forks a child, which has all our mappings for a moment.
fn fork() {
    let mut child = Command::new("/bin/busybox");
    child.arg("true");
    // SAFETY: nothing is done between fork and exec; that there is something to do makes it a fork, where the child could share our memory.
    unsafe { child.pre_exec(|| Ok(())) };
    assert!(child.status().unwrap().success());
}

fn unplug(node: &str) -> Result<(), Box<dyn Error>> {
    let device = open(node)?;
    println!("{:?}", device.info()?);
    let (file, quiet) = mapped_extent(&device, AT, 4, Access::ReadWrite);
    let (_busy, busy) = mapped_extent(&device, AT + 4 * PAGE, 300, Access::ReadWrite);
    let (read_only, _) = mapped_extent(&device, AT, 1, Access::Read);
    let ringer = device.doorbell_sender(HOST, 0)?;
    quiet.store(0, 77, Relaxed);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                (0..300).for_each(|page| busy.store(page * 1024, page, Relaxed));
                rounds.fetch_add(1, Relaxed);
            }
        });
        for pages in [1, 40] {
            let device = &device;
            scope.spawn(move || come_and_go(device, pages));
        }
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                fork();
            }
        });
        until("no thread writes", || rounds.load(Relaxed) > 2);
        println!("mapped");
        let mut fds = [PollFd::new(&device, PollFlags::empty())];
        assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
        assert!(device.is_gone());
        until("the window is still seen", || quiet.load(0, Relaxed) == 0);
        let before = rounds.load(Relaxed);
        until("the threads have stopped writing", || rounds.load(Relaxed) > before + 2);
        stop.store(true, Relaxed);
    });
    quiet.store(1024, 5, Relaxed);
    assert_eq!(quiet.load(1024, Relaxed), 5);
    for file in [&file, &read_only] {
        assert!(window_extent::extent(file).unwrap().gone);
        let anew = SharedMapping::new(Mapping::new(file, RegionSize(PAGE), Access::Read)?);
        assert_eq!(anew.load(9, Relaxed), 0);
    }
    assert_eq!(errno(device.info()), Some(Errno::NODEV));
    assert_eq!(errno(device.extent(AT, PAGE, Access::Read)), Some(Errno::NODEV));
    assert_eq!(rustix::io::write(&ringer, &[0; 8]), Err(Errno::NODEV));
    assert!(!device.ring(HOST, 0));
    assert!(open(node).is_err());
    println!("gone");
    Ok(())
}

/// Returns doorbells and words. The host sends first.
fn bounce(node: &str, doorbells: u32, words: u32) -> Result<(), Box<dyn Error>> {
    let device = open(node)?;
    let (_file, window) = mapped_extent(&device, AT, 1, Access::ReadWrite);
    let listener = Doorbell::from(device.listener(1)?);
    let ringer = Doorbell::from(device.doorbell_sender(HOST, 1)?);
    println!("bouncing");
    for _ in 0..doorbells {
        assert!(listener.wait(Duration::from_secs(60)));
        ringer.ring();
    }
    for word in 0..words {
        while window.load(0, Acquire) != 2 * word + 1 {
            std::hint::spin_loop();
        }
        window.store(0, 2 * word + 2, Release);
    }
    println!("memory type {}", device.info()?.memory_type);
    Ok(())
}

/// Prints a line for each ivshmem function: its folder and the driver that is bound to it.
fn functions() -> Result<(), Box<dyn Error>> {
    for function in pci::ivshmem_functions() {
        let driver = pci::bound_driver(&function);
        println!("{} {}", function.display(), driver.as_deref().unwrap_or("none"));
    }
    Ok(())
}

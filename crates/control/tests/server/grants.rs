//! Regions: passed on where they are safe and allowed, refused otherwise.

use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::RegionSize;
use isthmus_layout::control::*;
use isthmus_layout::ids::{DomainId, RegionId};
use isthmus_layout::reason::Reason;
use isthmus_platform::local;
use rustix::fs::MemfdFlags;

use crate::testbed::{Client, Testbed, inode};

fn grant(client: &mut Client, peer: DomainId, memory: &OwnedFd, start: u64, bytes: u64) -> Result<(), Reason> {
    let grant = Grant { peer, region: RegionId(1), start, bytes };
    client.request(grant, &[memory.as_fd()]).map(drop)
}

#[test]
fn a_region_reaches_its_reader_and_is_taken_back() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let memory = local::memory(RegionSize(1 << 20)).unwrap();
    grant(&mut a, theirs.id(), &memory, 4096, (1 << 20) - 4096).unwrap();
    let heard = b.receive_message();
    let expected = Granted { peer: ours.id(), region: RegionId(1), start: 4096, bytes: (1 << 20) - 4096 };
    assert_eq!(heard.message, expected.into());
    assert_eq!(inode(&heard.fds[0]), inode(&memory));
    a.send(Revoke { peer: theirs.id(), region: RegionId(1) }, &[]);
    assert_eq!(b.receive_message().message, Revoked { peer: ours.id(), region: RegionId(1) }.into());
    let again = a.request(Revoke { peer: theirs.id(), region: RegionId(1) }, &[]).err();
    assert_eq!(again, Some(Reason::RegionNotGranted), "what was granted once is taken back once");
}

#[test]
fn memory_that_could_hurt_its_reader_is_refused() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let sealed = local::memory(RegionSize(8192)).unwrap();
    assert_eq!(grant(&mut a, theirs.id(), &sealed, 4096, 8192), Err(Reason::RegionTooSmall));
    assert_eq!(grant(&mut a, theirs.id(), &sealed, u64::MAX, 2), Err(Reason::RegionTooSmall));
    let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 8192).unwrap();
    assert_eq!(grant(&mut a, theirs.id(), &loose, 0, 8192), Err(Reason::RegionNotSealed));
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    assert_eq!(grant(&mut a, theirs.id(), &file, 0, 0), Err(Reason::RegionNotSealed));
    b.expect_no_message();
}

#[test]
fn a_policy_forbids_grants() {
    let memory = local::memory(RegionSize(8192)).unwrap();
    let bed = Testbed::with("[policy]\ngrants = \"never\"\n");
    let ((mut a, _), (_b, theirs)) = (bed.attached("a"), bed.attached("b"));
    assert_eq!(grant(&mut a, theirs.id(), &memory, 0, 8192), Err(Reason::GrantsForbidden));
    let nobody = DomainId::new(99).unwrap();
    assert_eq!(grant(&mut a, nobody, &memory, 0, 8192), Err(Reason::NoSuchDomain));
}

#[test]
fn a_reader_that_does_not_read_is_not_flooded() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let memory = local::memory(RegionSize(8192)).unwrap();
    let refused = (0..2000).find_map(|_| grant(&mut a, theirs.id(), &memory, 0, 8192).err());
    assert_eq!(refused, Some(Reason::RegionsFull));
    // The domain was not dropped for this, and all its pending grants arrive.
    let granted = |heard: &crate::testbed::ReceivedMessage| matches!(heard.message, ToClient::Granted(_));
    (0..64).for_each(|_| drop(b.receive_matching(granted)));
    b.request(Lookup { name: crate::testbed::name("a") }, &[]).unwrap();
}

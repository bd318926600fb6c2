//! Restarts of the daemon: domains and channels continue.

use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::RegionSize;
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_platform::{Doorbell, local};

use crate::testbed::{AttachedDomain, Client, Testbed, channel, name};

pub(crate) fn come_back(bed: &Testbed, before: &AttachedDomain) -> (Client, Result<AttachedDomain, Reason>) {
    let Welcome { domain, ticket, name, .. } = before.message.clone();
    let mut client = bed.greeted();
    let attach = Attach { name: Some(name), resume: Some(Resume { domain, ticket }) };
    let back = client.attach_with(attach, &[before.fds[3].as_fd(), before.fds[4].as_fd()]);
    (client, back)
}

fn restart(bed: &mut Testbed) {
    bed.stop();
    bed.start("", VersionRange::CURRENT);
}

fn show(client: &mut Client, offer: &ChannelOffer, memory: &OwnedFd) -> Result<(), Reason> {
    let ChannelOffer { channel, peer, direction, slab, ready_map, ready_bit, peer_ready_bit, .. } = *offer;
    client
        .request(
            AdoptChannel { channel, peer, direction, slab, ready_map, ready_bit, peer_ready_bit },
            &[memory.as_fd()],
        )
        .map(drop)
}

#[test]
fn domains_and_channels_come_back() {
    let mut bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(at_a, fds_a), (at_b, fds_b)] = channel(&mut a, &mut b, theirs.id());
    restart(&mut bed);
    let (mut a, again) = come_back(&bed, &ours);
    let again = again.unwrap();
    assert_eq!((again.id(), again.message.fresh, again.fds.len()), (ours.id(), false, 3));
    assert_ne!(again.message.epoch, ours.message.epoch);
    show(&mut a, &at_a, &fds_a[0]).unwrap();
    let (mut b, again) = come_back(&bed, &theirs);
    assert_eq!(again.unwrap().message.domain, theirs.id());
    show(&mut b, &at_b, &fds_b[0]).unwrap();
    let channels: isthmus_report::Channels = a.report(Topic::Channels, &[]).unwrap();
    assert_eq!(channels.pairs[0].channel.as_ref().unwrap().id, at_a.channel.to_string());
    b.send(CloseChannel { channel: at_b.channel, reason: Reason::ClosedLocally }, &[]);
    assert_eq!(
        a.receive_message().message,
        ChannelClosed { channel: at_a.channel, reason: Reason::ClosedByPeer }.into()
    );
    // Ready bits are free again, and new domains have new numbers.
    channel(&mut a, &mut b, theirs.id());
    let (_c, new) = bed.attached("c");
    assert!(new.id() > theirs.id());
}

#[test]
fn domains_come_back_if_the_runtime_folder_was_missing_and_vanished() {
    let mut bed = Testbed::new(); // Without the folder.
    let ((_a, ours), state) = (bed.attached("a"), bed.runtime_dir());
    restart(&mut bed);
    let (_a, again) = come_back(&bed, &ours);
    assert_eq!(again.unwrap().id(), ours.id());
    std::fs::remove_dir_all(&state).unwrap();
    // The next change makes it again, with what was in it.
    let (_b, theirs) = bed.attached("b");
    restart(&mut bed);
    for before in [&ours, &theirs] {
        let (_client, again) = come_back(&bed, before);
        assert_eq!(again.unwrap().id(), before.id());
    }
}

#[test]
fn channels_come_back_although_the_file_of_resumable_domains_was_cut() {
    let mut bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(at_a, fds_a), (at_b, fds_b)] = channel(&mut a, &mut b, theirs.id());
    let file = bed.runtime_dir().join("resume");
    bed.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    let head: String = text.split_inclusive('\n').take(3).collect();
    assert!(head.len() < text.len());
    std::fs::write(&file, head).unwrap();
    bed.start("", VersionRange::CURRENT);
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    show(&mut a, &at_a, &fds_a[0]).unwrap(); // Its other end is in no list, but may come.
    let (mut b, again) = come_back(&bed, &theirs);
    again.unwrap();
    show(&mut b, &at_b, &fds_b[0]).unwrap();
    let channels: isthmus_report::Channels = a.report(Topic::Channels, &[]).unwrap();
    assert_eq!(channels.pairs[0].channel.as_ref().unwrap().id, at_a.channel.to_string());
    // A domain that leaves is known to have ended.
    b.request(Detach {}, &[]).unwrap();
    a.request(CloseChannel { channel: at_a.channel, reason: Reason::ClosedLocally }, &[]).err();
    assert_eq!(show(&mut a, &at_a, &fds_a[0]).err(), Some(Reason::PeerConnectionLost));
}

#[test]
fn a_channel_whose_other_end_is_dead_ends() {
    let mut bed = Testbed::new();
    let (mut a, ours) = bed.attached("a");
    let (mut b, theirs) = bed.attached("b");
    let [(at_a, fds_a), _] = channel(&mut a, &mut b, theirs.id());
    b.request(Detach {}, &[]).unwrap();
    restart(&mut bed);
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    assert_eq!(show(&mut a, &at_a, &fds_a[0]), Err(Reason::PeerConnectionLost));
}

#[test]
fn only_the_true_domain_comes_back() {
    let mut bed = Testbed::new();
    let (_a, ours) = bed.attached("a");
    let (again, twice) = come_back(&bed, &ours);
    assert_eq!(twice.err(), Some(Reason::NameTaken));
    drop(again);
    restart(&mut bed);
    let mut forged = AttachedDomain { message: ours.message.clone(), fds: Vec::new() };
    forged.fds.extend(ours.fds.iter().map(|fd| fd.try_clone().unwrap()));
    forged.message.ticket = Ticket([7; 32]);
    assert_eq!(come_back(&bed, &forged).1.err(), Some(Reason::TicketInvalid));
    forged.message.ticket = ours.message.ticket;
    forged.message.name = name("another");
    assert_eq!(come_back(&bed, &forged).1.err(), Some(Reason::TicketInvalid));
    let (_back, first) = come_back(&bed, &ours);
    first.unwrap();
}

#[test]
fn rejects_an_invalid_ready_map_on_resume() {
    let mut bed = Testbed::new();
    let (_a, ours) = bed.attached("a");
    restart(&mut bed);
    let with = |memory: OwnedFd, doorbell: OwnedFd| {
        let mut changed = AttachedDomain { message: ours.message.clone(), fds: Vec::new() };
        changed.fds.extend(ours.fds[..3].iter().map(|fd| fd.try_clone().unwrap()));
        changed.fds.extend([memory, doorbell]);
        come_back(&bed, &changed).1.err()
    };
    let doorbell = || Doorbell::new().unwrap().as_fd().try_clone_to_owned().unwrap();
    let board = || local::memory(RegionSize(4096)).unwrap();
    assert_eq!(with(board(), board()), Some(Reason::DoorbellInvalid));
    assert_eq!(with(local::memory(RegionSize(64)).unwrap(), doorbell()), Some(Reason::RegionTooSmall));
    assert_eq!(with(tempfile::tempfile().unwrap().into(), doorbell()), Some(Reason::RegionNotSealed));
    assert_eq!(with(board(), doorbell()), None);
}

#[test]
fn ends_that_do_not_fit_are_no_channel() {
    let mut bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(at_a, fds_a), (at_b, _)] = channel(&mut a, &mut b, theirs.id());
    restart(&mut bed);
    let ((mut a, first), (mut b, second)) = (come_back(&bed, &ours), come_back(&bed, &theirs));
    first.unwrap();
    second.unwrap();
    show(&mut a, &at_a, &fds_a[0]).unwrap();
    assert_eq!(show(&mut a, &at_a, &fds_a[0]), Err(Reason::RequestInvalid), "once is enough");
    let other = local::memory(RegionSize(20480 + 2 * u64::from(at_b.slab.bytes()))).unwrap();
    assert_eq!(show(&mut b, &at_b, &other), Err(Reason::RequestInvalid));
    let closed = a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
    assert_eq!(closed.message, ChannelClosed { channel: at_a.channel, reason: Reason::RequestInvalid }.into());
}

#[test]
fn name_of_a_domain_that_may_resume_is_refused_to_others() {
    let users = "[policy]\nattach = \"any-user\"\n";
    let mut bed = Testbed::with(users);
    let (_a, ours) = bed.attached("web server");
    bed.stop();
    bed.start(users, VersionRange::CURRENT);
    let Some(mut other) = bed.greeted_as(70001) else {
        return eprintln!("skipped: only root can be other users");
    };
    assert_eq!(other.attach(Some("web server")).err(), Some(Reason::NameTaken));
    let (mut back, again) = come_back(&bed, &ours);
    assert_eq!(again.unwrap().id(), ours.id());
    // From now on the name is the domain's as that of any other domain.
    back.request(Detach {}, &[]).unwrap();
    other.attach(Some("web server")).unwrap();
}

#[test]
fn process_may_attach_under_the_name_that_it_had() {
    let mut bed = Testbed::new();
    let (_a, ours) = bed.attached("a");
    restart(&mut bed);
    let (_new, welcomed) = bed.attached("a");
    assert_ne!(welcomed.id(), ours.id());
    assert_eq!(come_back(&bed, &ours).1.err(), Some(Reason::NameTaken));
}

#[test]
fn lookup_waits_for_a_domain_that_may_resume() {
    let mut bed = Testbed::new();
    let ((_a, ours), (_b, theirs)) = (bed.attached("a"), bed.attached("b"));
    restart(&mut bed);
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    let by_name = a.send(Lookup { name: name("b") }, &[]);
    let by_number = a.send(Lookup { name: name(&theirs.id().to_string()) }, &[]);
    a.expect_no_message();
    let (_b, again) = come_back(&bed, &theirs);
    again.unwrap();
    let found = Found { domain: theirs.id(), name: name("b"), owner: theirs.message.owner };
    for serial in [by_name, by_number] {
        let heard = a.receive_matching(|heard| heard.serial == Some(serial));
        assert_eq!(heard.message, found.clone().into());
    }
}

#[test]
fn lookup_of_a_domain_that_does_not_resume_is_refused_in_the_end() {
    let mut bed = Testbed::new();
    let ((_a, ours), (_b, _theirs)) = (bed.attached("a"), bed.attached("b"));
    restart(&mut bed);
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    let begun = std::time::Instant::now();
    // Its process lives, and does not resume.
    assert_eq!(a.request(Lookup { name: name("b") }, &[]).err(), Some(Reason::NoSuchDomain));
    assert!(begun.elapsed() > std::time::Duration::from_secs(1), "it has waited");
}

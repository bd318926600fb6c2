//! Requests to change overlay networks: the users that may send them, and the files that they carry.

use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::control::*;
use isthmus_layout::overlay::{OVERLAY_CHANGE_BYTES_MAX, OverlayChange};
use isthmus_layout::reason::Reason;
use isthmus_report::overlay::{OverlayChanged, OverlayTable};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::testbed::{Client, Testbed};

const ADD: &str = r#"{ "edits": [{ "add_network": { "name": "lab", "vni": 7 } }] }"#;

fn file(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let file = memfd_create(c"change", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert_eq!(rustix::io::write(&file, bytes), Ok(bytes.len()));
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn sealed(text: &str) -> OwnedFd {
    file(text.as_bytes(), SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)
}

fn change(client: &mut Client, file: &OwnedFd) -> Result<OverlayChanged, Reason> {
    match client.request(OverlayChange {}, &[file.as_fd()])?.message {
        ToClient::QueryReply(reply) => {
            assert!(reply.last);
            Ok(serde_json::from_slice(&reply.json).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn table(bed: &Testbed) -> OverlayTable {
    bed.greeted().report(Topic::Overlay, &["table"]).unwrap()
}

#[test]
fn a_change_of_the_daemons_user_is_carried_out() {
    let bed = Testbed::new();
    let mut client = bed.greeted();
    let changed = change(&mut client, &sealed(ADD)).unwrap();
    assert_eq!(changed.toml, "[[overlay.network]]\nname = \"lab\"\nvni = 7\n");
    assert_eq!((table(&bed).toml, table(&bed).changes), (changed.toml, 1));
    assert_eq!(change(&mut client, &sealed(ADD)).err(), Some(Reason::OverlayChangeInvalid), "the name is taken");
}

#[test]
fn networks_are_not_for_other_users() {
    let bed = Testbed::with("[policy]\nattach = \"any-user\"\n");
    let Some(mut other) = bed.greeted_as(12_345) else {
        return println!("skipped: only root can be another user");
    };
    assert_eq!(change(&mut other, &sealed(ADD)).err(), Some(Reason::OverlayForbidden));
    assert_eq!(table(&bed).toml, "");
}

#[test]
fn other_files_and_texts_are_refused() {
    let bed = Testbed::new();
    let mut client = bed.greeted();
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    for left in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW] {
        let file = file(ADD.as_bytes(), all.difference(left));
        assert_eq!(change(&mut client, &file).err(), Some(Reason::RequestInvalid), "{left:?} is missing");
    }
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert_eq!(change(&mut client, &pipe.into()).err(), Some(Reason::RequestInvalid));
    let long = vec![b' '; OVERLAY_CHANGE_BYTES_MAX + 1];
    assert_eq!(change(&mut client, &file(&long, all)).err(), Some(Reason::RequestInvalid));
    for text in [
        "",
        "{",
        "[]",
        r#"{ "edits": [{ "rename": 1 }] }"#,
        r#"{ "edits": [{ "remove_edge": { "network": "lab" } }] }"#,
    ] {
        assert_eq!(change(&mut client, &sealed(text)).err(), Some(Reason::RequestInvalid), "{text}");
    }
    assert_eq!(
        change(&mut client, &sealed(r#"{ "edits": [{ "remove_network": "lab" }] }"#)).err(),
        Some(Reason::OverlayChangeInvalid)
    );
    assert_eq!(table(&bed).changes, 0);
}

#[test]
fn an_attached_domain_cannot_change_networks() {
    let bed = Testbed::new();
    let (mut domain, _) = bed.attached("a");
    assert_eq!(change(&mut domain, &sealed(ADD)).err(), Some(Reason::UnexpectedMessageType));
}

//! Claims of endpoint numbers against a directory of domains.

use super::*;
use crate::directory::Directory;
use crate::directory::{AttachRequest, Limits};
use crate::places::Taker;
use isthmus_config::MxBoardEntry;
use isthmus_layout::NicId;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex};
use isthmus_layout::reason::Reason;

fn directory() -> Directory {
    let limits = Limits { domains: 4, domains_per_owner: 3, endpoints: 32, channels: 8 };
    Directory::new(limits, DomainId::new(1).unwrap())
}

fn mx(endpoints: u32) -> Mx {
    let board = MxBoardEntry { nic: NicId::from_octets([2, 0, 0, 0, 0, 1]), name: "host:0".into(), endpoints };
    Mx { numbers: EndpointNumbers::new(vec![board], 2), ..Mx::default() }
}

fn user(owner: u32) -> Taker {
    Taker { account: Owner(owner), has_others: false }
}

fn attach(directory: &mut Directory, owner: u32) -> DomainId {
    let fallback = Name::new("prog-17").unwrap();
    let request = AttachRequest { name: None, fallback, owner: Owner(owner), taker: user(owner), resumed: None };
    directory.attach(request).unwrap().id
}

#[test]
fn claims_only_for_open_endpoints_of_attached_domains() {
    let (mut directory, mut mx) = (directory(), mx(2));
    let ids = [attach(&mut directory, 5), attach(&mut directory, 5)];
    let at = |domain: DomainId, endpoint| EndpointAddress { domain, endpoint: EndpointIndex::new(endpoint).unwrap() };
    let (a, b) = (at(ids[0], 0), at(ids[1], 0));
    assert_eq!(mx.claim(&directory, user(5), (None, None, 1), a), Err(Reason::EndpointClosed), "it has to be open");
    directory.open_endpoint(ids[0], None, None).unwrap();
    directory.open_endpoint(ids[1], None, None).unwrap();
    let number = mx.claim(&directory, user(5), (None, None, 1), a).unwrap();
    assert_eq!(mx.claim(&directory, user(5), (Some(0), Some(number.endpoint), 1), b), Err(Reason::MxEndpointTaken));
    assert_eq!(mx.numbers.close(a), Some(number));
    assert_eq!(mx.claim(&directory, user(5), (Some(0), Some(number.endpoint), 1), b), Ok(number));
    directory.detach(ids[1]).unwrap();
    assert_eq!(mx.numbers.remove_domain(ids[1]), [number]);
    assert_eq!((mx.numbers.claims().len(), mx.numbers.last_number_of(b)), (0, Ok(number)));
    assert_eq!(mx.claim(&directory, user(5), (None, None, 1), b), Err(Reason::NoSuchDomain));
}

#[test]
fn one_owner_does_not_get_all_numbers() {
    let (mut directory, mut mx) = (directory(), mx(3));
    let mut claim = |owner| {
        let domain = attach(&mut directory, owner);
        let endpoint = directory.open_endpoint(domain, None, None).unwrap();
        let at = EndpointAddress { domain, endpoint };
        mx.claim(&directory, user(owner), (None, None, 0), at).map(|number| number.endpoint)
    };
    assert_eq!([claim(5), claim(5), claim(5), claim(6)], [Ok(0), Ok(1), Err(Reason::MxUserEndpointsFull), Ok(2)]);
}

use super::*;

fn limits() -> Limits {
    Limits { domains: 4, domains_per_owner: 3, endpoints: 32, channels: 8 }
}

fn directory() -> Directory {
    Directory::new(limits(), DomainId::new(1).unwrap())
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn applicant(owner: u32) -> AttachRequest {
    let taker = Taker { account: Owner(owner), has_others: false };
    AttachRequest { name: None, fallback: name("prog-17"), owner: Owner(owner), taker, resumed: None }
}

fn attach(directory: &mut Directory, applicant: AttachRequest) -> Result<(u32, String), Reason> {
    directory.attach(applicant).map(|domain| (domain.id.number(), domain.name.to_string()))
}

#[test]
fn domains_get_numbers_and_names() {
    let mut directory = directory();
    assert_eq!(attach(&mut directory, applicant(5)), Ok((1, "prog-17".into())));
    assert_eq!(attach(&mut directory, applicant(5)), Ok((2, "prog-17-2".into())));
    let web = AttachRequest { name: Some(name("web")), ..applicant(5) };
    assert_eq!(attach(&mut directory, web.clone()), Ok((3, "web".into())));
    assert_eq!(attach(&mut directory, applicant(5)), Err(Reason::UserDomainsFull));
    assert_eq!(
        attach(&mut directory, AttachRequest { name: Some(name("web")), ..applicant(6) }),
        Err(Reason::NameTaken)
    );
    let number = AttachRequest { name: Some(name("d9")), ..applicant(6) };
    assert_eq!(attach(&mut directory, number), Err(Reason::NameInvalid));
    attach(&mut directory, applicant(6)).unwrap();
    assert_eq!(attach(&mut directory, applicant(7)), Err(Reason::DomainsFull));
    let (gone, _) = directory.detach(DomainId::new(3).unwrap()).unwrap();
    assert_eq!(gone.name, name("web"));
    assert_eq!(attach(&mut directory, web), Ok((5, "web".into())), "the name is free again, the number is not");
}

#[test]
fn users_share_the_places() {
    let limits = Limits { domains: 16, domains_per_owner: 16, ..limits() };
    let mut directory = Directory::new(limits, DomainId::new(1).unwrap());
    let request = |owner: u32| {
        let taker = Taker { account: Owner(owner.min(7)), has_others: true };
        AttachRequest { taker, ..applicant(owner) }
    };
    let mut count = |owner| (0..16).filter(|_| directory.attach(request(owner)).is_ok()).count();
    // Users 8 and 9 are subordinate to user 7.
    assert_eq!([5, 6, 7, 8, 9].map(&mut count), [7, 3, 2, 0, 0]);
    assert_eq!(attach(&mut directory, request(5)), Err(Reason::UserDomainsFull));
    let resumed = AttachRequest { resumed: DomainId::new(100), ..request(5) };
    assert_eq!(directory.attach(resumed).map(|domain| domain.id.number()), Ok(100));
    assert_eq!([1, 2, 3].map(|owner| attach(&mut directory, request(owner)).is_ok()), [true; 3]);
    assert_eq!(attach(&mut directory, request(4)), Err(Reason::DomainsFull));
    directory.detach(DomainId::new(100).unwrap()).unwrap();
    assert!(attach(&mut directory, request(4)).is_ok());
}

#[test]
fn many_domains_of_one_name_get_short_numbers_and_then_any() {
    let limits = Limits { domains: 1000, domains_per_owner: 1000, ..limits() };
    let mut directory = Directory::new(limits, DomainId::new(1).unwrap());
    let names: Vec<String> = (0..1000).map(|_| attach(&mut directory, applicant(5)).unwrap().1).collect();
    assert_eq!((&*names[1], &*names[31]), ("prog-17-2", "prog-17-32"));
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 1000);
}

#[test]
fn a_domain_that_comes_back_keeps_its_number() {
    let mut directory = Directory::new(limits(), DomainId::new(100).unwrap());
    let back = AttachRequest { name: Some(name("web")), resumed: DomainId::new(7), ..applicant(5) };
    assert_eq!(attach(&mut directory, back.clone()), Ok((7, "web".into())));
    let twice = AttachRequest { name: Some(name("other")), ..back };
    assert_eq!(attach(&mut directory, twice), Err(Reason::StillAttached));
    assert_eq!(attach(&mut directory, applicant(5)), Ok((100, "prog-17".into())));
}

#[test]
fn reserved_name_is_for_its_domain_only() {
    let mut directory = Directory::new(limits(), DomainId::new(100).unwrap());
    let (web, seven) = (name("prog-17"), DomainId::new(7).unwrap());
    directory.reserve_name(web.clone(), seven);
    let other = AttachRequest { name: Some(web.clone()), ..applicant(6) };
    assert_eq!(attach(&mut directory, other.clone()), Err(Reason::NameTaken));
    let eight = AttachRequest { resumed: DomainId::new(8), ..other.clone() };
    assert_eq!(attach(&mut directory, eight), Err(Reason::NameTaken));
    assert_eq!(attach(&mut directory, applicant(6)), Ok((100, "prog-17-2".into())), "no fallback takes it");
    assert!(directory.find(&web).is_none() && directory.id_of(&web) == Some(seven));
    let back = AttachRequest { resumed: Some(seven), ..other.clone() };
    assert_eq!(attach(&mut directory, back.clone()), Ok((7, "prog-17".into())));
    assert_eq!(attach(&mut directory, back), Err(Reason::NameTaken), "once");
    directory.release_name(&web, seven);
    assert_eq!(attach(&mut directory, other.clone()), Err(Reason::NameTaken), "an attached domain keeps its name");
    directory.detach(seven).unwrap();
    directory.reserve_name(web.clone(), seven);
    directory.release_name(&web, seven);
    assert_eq!(attach(&mut directory, other), Ok((101, "prog-17".into())));
}

#[test]
fn domains_are_found_by_name_and_by_number() {
    let mut directory = directory();
    attach(&mut directory, AttachRequest { name: Some(name("web")), ..applicant(5) }).unwrap();
    assert_eq!(directory.find(&name("web")).map(|domain| domain.id.number()), Some(1));
    assert_eq!(directory.find(&name("d1")).map(|domain| domain.name.as_str()), Some("web"));
    assert!(directory.find(&name("d2")).is_none() && directory.find(&name("we")).is_none());
}

#[test]
fn endpoints_open_once_and_up_to_the_limit() {
    let mut directory = directory();
    let id = directory.attach(applicant(5)).unwrap().id;
    let index = |number| EndpointIndex::new(number);
    assert_eq!(directory.open_endpoint(id, index(1), Some(name("mpi"))), Ok(index(1).unwrap()));
    assert_eq!(directory.open_endpoint(id, index(1), None), Err(Reason::EndpointTaken));
    assert_eq!(directory.open_endpoint(id, None, None), Ok(index(0).unwrap()));
    assert_eq!(directory.open_endpoint(id, None, None), Ok(index(2).unwrap()));
    for _ in 3..32 {
        directory.open_endpoint(id, None, None).unwrap();
    }
    assert_eq!(directory.open_endpoint(id, None, None), Err(Reason::EndpointsFull));
    assert_eq!(directory.close_endpoint(id, index(7).unwrap()), Ok(()));
    assert_eq!(directory.close_endpoint(id, index(7).unwrap()), Err(Reason::EndpointClosed));
    assert_eq!(directory.open_endpoint(id, None, None), Ok(index(7).unwrap()));
}

#[test]
fn those_who_watch_a_domain_are_named_when_it_goes() {
    let mut directory = directory();
    let ids: Vec<DomainId> = (0..3).map(|_| directory.attach(applicant(5)).unwrap().id).collect();
    directory.watch(ids[1], ids[0]);
    directory.watch(ids[2], ids[0]);
    directory.watch(ids[0], ids[2]);
    directory.detach(ids[1]).unwrap();
    let (_, watchers) = directory.detach(ids[0]).unwrap();
    assert_eq!(watchers.into_iter().collect::<Vec<_>>(), [ids[2]]);
    assert!(directory.get(ids[2]).unwrap().peers.is_empty());
    let (_, watchers) = directory.detach(ids[2]).unwrap();
    assert!(watchers.is_empty());
}

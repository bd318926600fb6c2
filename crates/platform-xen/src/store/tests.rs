use super::*;
use crate::fake::FakeHost;
use crate::kernel::Kernel;
use std::cell::RefCell;
use std::rc::Rc;

/// A store with scripted replies to any requests.
#[derive(Clone, Debug, Default)]
struct Scripted {
    answers: Rc<RefCell<VecDeque<Vec<u8>>>>,
    asked: Rc<RefCell<Vec<u8>>>,
}

impl Scripted {
    fn with(answers: &[Vec<u8>]) -> Store<Self> {
        let wire = Self { answers: Rc::new(RefCell::new(answers.iter().cloned().collect())), asked: Rc::default() };
        Store::new(wire)
    }
}

impl StoreTransport for Scripted {
    fn send(&mut self, packet: &[u8]) -> Result<(), Errno> {
        self.asked.borrow_mut().extend_from_slice(packet);
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8], _limit: Duration) -> Result<usize, Errno> {
        let Some(answer) = self.answers.borrow_mut().pop_front() else { return Err(Errno::PIPE) };
        into[..answer.len()].copy_from_slice(&answer);
        Ok(answer.len())
    }
}

fn packet(kind: PacketKind, request: u32, body: &[u8]) -> Vec<u8> {
    protocol::emit(kind, request, 0, &[], body).unwrap()
}

fn event(path: &str) -> StoreEvent {
    StoreEvent::Changed { path: path.to_owned(), token: "t".to_owned() }
}

#[test]
fn events_that_come_before_an_answer_wait() {
    let said = [
        packet(PacketKind::WatchEvent, 0, b"a\0t\0"),
        packet(PacketKind::Read, 1, b"x"),
        packet(PacketKind::WatchEvent, 0, b"b\0t\0"),
    ];
    let mut store = Scripted::with(&said);
    assert_eq!(store.read("p").unwrap(), b"x");
    assert_eq!(store.event(Duration::ZERO).unwrap(), Some(event("a")));
    assert_eq!(store.event(Duration::ZERO).unwrap(), Some(event("b")));
    assert!(matches!(store.event(Duration::ZERO), Err(StoreError::Broken(Errno::PIPE))));
}

#[test]
fn answers_to_other_requests_are_dropped() {
    let mut store = Scripted::with(&[packet(PacketKind::Read, 77, b"old"), packet(PacketKind::Read, 1, b"x")]);
    assert_eq!(store.read("p").unwrap(), b"x");
}

#[test]
fn an_answer_of_another_kind_is_an_error() {
    let mut store = Scripted::with(&[packet(PacketKind::Write, 1, b"OK\0")]);
    assert!(matches!(store.read("p"), Err(StoreError::MalformedPacket(MalformedPacket::Body))));
    let mut store = Scripted::with(&[packet(PacketKind::Error, 1, b"EACCES\0")]);
    let refused = store.read("p").unwrap_err();
    assert_eq!(refused.refusal(), Some(StoreRefusal::Forbidden));
    assert_eq!(refused.to_string(), "the store refuses to read p: EACCES: not permitted, or gone");
    let mut store = Scripted::with(&[[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].to_vec()]);
    assert!(matches!(store.read("p"), Err(StoreError::MalformedPacket(MalformedPacket::TooLong(_)))));
}

#[test]
fn merges_equal_events_and_reports_overflow() {
    let same = vec![packet(PacketKind::WatchEvent, 0, b"a\0t\0"); 5];
    let mut store = Scripted::with(&[same, vec![packet(PacketKind::Read, 1, b"")]].concat());
    store.read("p").unwrap();
    assert_eq!(store.event(Duration::ZERO).unwrap(), Some(event("a")));
    assert!(store.events.is_empty());

    let many = (0..=EVENTS_MAX).map(|number| packet(PacketKind::WatchEvent, 0, format!("a{number}\0t\0").as_bytes()));
    let mut store = Scripted::with(&many.chain([packet(PacketKind::Read, 1, b"")]).collect::<Vec<_>>());
    store.read("p").unwrap();
    assert_eq!(store.event(Duration::ZERO).unwrap(), Some(StoreEvent::Overflow));
    assert!(store.events.is_empty());

    let mut store = Scripted::with(&[packet(PacketKind::WatchEvent, 0, b"\xff\0t\0")]);
    assert_eq!(store.event(Duration::ZERO).unwrap(), Some(StoreEvent::Overflow));
}

#[test]
fn does_not_send_unencodable_requests() {
    let mut store = Scripted::with(&[]);
    assert!(matches!(store.read("a b"), Err(StoreError::Unencodable(UnencodableRequest::Path))));
    assert!(matches!(store.write("a", &[0; 5000]), Err(StoreError::Unencodable(UnencodableRequest::TooLong(_)))));
    assert!(store.transport.asked.borrow().is_empty());
}

fn two(host: &FakeHost) -> [Store<crate::fake::FakeStoreTransport>; 2] {
    [(), ()].map(|()| Store::new(host.domain(Domid::ZERO).store().unwrap()))
}

#[test]
fn retries_a_conflicting_transaction() {
    let [mut one, mut other] = two(&FakeHost::new());
    let mut tries = 0;
    one.write("/n", b"0").unwrap();
    let read = one.transaction(|store| {
        tries += 1;
        let value = store.read("/n")?;
        if tries == 1 {
            other.write("/n", b"5").unwrap();
        }
        store.write("/n", &[&value[..], b"+"].concat())?;
        Ok(value)
    });
    assert_eq!((read.unwrap(), tries), (b"5".to_vec(), 2));
    assert_eq!(other.read("/n").unwrap(), b"5+");
    let contended = one.transaction(|store| {
        other.write("/n", b"x").unwrap();
        store.write("/n", b"y")
    });
    assert!(matches!(contended, Err(StoreError::TransactionConflict)));
}

#[test]
fn a_transaction_that_fails_changes_nothing() {
    let [mut one, mut other] = two(&FakeHost::new());
    let failed = one.transaction(|store| {
        store.write("/n", b"1")?;
        store.read("/missing")
    });
    assert_eq!(failed.unwrap_err().refusal(), Some(StoreRefusal::Missing));
    assert_eq!(other.read("/n").unwrap_err().refusal(), Some(StoreRefusal::Missing));
    // The connection is no longer in a transaction.
    one.write("/m", b"1").unwrap();
    assert_eq!(other.read("/m").unwrap(), b"1");
}

#[test]
fn nodes_are_made_listed_and_removed() {
    let [mut store, _] = two(&FakeHost::new());
    store.mkdir("/a").unwrap();
    store.write("/a/b", b"1").unwrap();
    store.write("/a/c/d", b"2").unwrap();
    assert_eq!(store.children("/a").unwrap(), ["b", "c"]);
    assert_eq!(store.permissions("/a/b").unwrap()[0].domid, Domid::ZERO);
    store.remove("/a").unwrap();
    store.remove("/a").unwrap();
    assert!(store.children("/a").is_err());
    assert_eq!(store.read("/a/b").unwrap_err().refusal(), Some(StoreRefusal::Missing));
    assert_eq!(store.own_domid().unwrap(), Domid::ZERO);
}

//! Attacks by load: one user takes what it can of the control plane, and another user attaches meanwhile.

use crate::attack_bed::{AttackBed, OTHER_UID};
use isthmus_client::{Domain, Options, QueryClient, Topic, WaitMode};
use isthmus_layout::control::{Hello, Magic, Name, ToClient, ToDaemon, VersionRange};
use isthmus_platform::seqpacket;
use isthmus_testbed::{Deadline, eventually};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// The number of times that a victim attaches.
const ATTACHES: usize = 40;

/// The factor by which an attack may slow the victim down. The attacker's threads and the daemon share two processors with the victim.
const SLOWDOWN_MAX: u32 = 200;

/// Descriptors of a daemon that an attacker could have in flight.
const FDS: u64 = 4096;

impl AttackBed {
    /// Attaches and detaches a domain of another owner than the attacker's repeatedly. Returns the time that it took.
    #[track_caller]
    fn attach_repeatedly(&self) -> Duration {
        let start = Instant::now();
        for attempt in 0..ATTACHES {
            let options = Options {
                name: Some(Name::new("victim").expect("a valid name")),
                socket: Some(self.daemon.socket()),
                no_autostart: true,
                wait: WaitMode::Sleep,
                ..Options::default()
            };
            let domain: Domain = Domain::attach_with(&options)
                .unwrap_or_else(|error| panic!("attempt {attempt} of {ATTACHES} after {:?}: {error}", start.elapsed()));
            domain.detach(Duration::from_secs(60));
        }
        start.elapsed()
    }

    /// Attaches repeatedly, before and during an attack, and compares.
    #[track_caller]
    fn compare_attaches(&mut self, attack: &str) {
        let quiet = self.attach_repeatedly();
        self.run_attack_as(Some(OTHER_UID), &[attack]);
        let attacked = self.attach_repeatedly();
        eprintln!("{ATTACHES} attaches: {quiet:?} before, {attacked:?} during {attack}");
        assert!(attacked < SLOWDOWN_MAX * quiet, "{quiet:?} became {attacked:?}");
    }
}

#[test]
fn connecting_without_end_does_not_keep_others_out() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    attack_bed.compare_attaches("connect-loop");
    assert!(attack_bed.reason_count("connections-full") > 1000, "{:?}", attack_bed.status().reasons);
    attack_bed.finish();
}

#[test]
fn request_floods_of_a_user_do_not_delay_others() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    attack_bed.compare_attaches("request-flood");
    attack_bed.finish();
}

#[test]
fn hello_that_arrives_in_time_is_not_refused_because_the_daemon_reads_it_late() {
    let mut attack_bed = AttackBed::new("");
    let path = attack_bed.daemon.socket();
    let sockets: Vec<_> = (0..32).map(|_| seqpacket::connect(&path).unwrap()).collect();
    let silent = seqpacket::connect(&path).unwrap();
    attack_bed.status(); // Connections are accepted in their order.
    attack_bed.daemon.proc().freeze().unwrap();
    let library = Name::new("late").expect("a valid name");
    let hello = ToDaemon::from(Hello { magic: Magic, versions: VersionRange::CURRENT, library }).emit(None);
    sockets.iter().for_each(|socket| seqpacket::send(socket, &hello, &[]).unwrap());
    // Longer than the handshake timeout.
    assert!(
        Deadline::after(Duration::from_secs(2)).readable([sockets[0].as_fd()]).is_err(),
        "a stopped daemon answers"
    );
    attack_bed.daemon.proc().thaw().unwrap();
    for socket in &sockets {
        Deadline::secs(60).readable([socket.as_fd()]).unwrap();
        let mut packet = [0; 4096];
        let bytes = seqpacket::receive(socket, &mut packet, &mut Vec::new(), false).unwrap();
        let (_, reply) = ToClient::parse(&packet[..bytes], 0).unwrap();
        assert!(matches!(reply, ToClient::HelloReply(_)), "{reply:?}");
    }
    let is_refused = || attack_bed.reason_count("handshake-timeout") == 1;
    eventually(Deadline::secs(60), is_refused).expect("the silent connection is refused, and no other");
    drop((sockets, silent));
    attack_bed.finish();
}

#[test]
fn unread_descriptors_of_a_user_do_not_keep_others_out() {
    let Some(mut attack_bed) = AttackBed::with_users_and_fds(FDS) else { return };
    attack_bed.compare_attaches("hold-descriptors");
    attack_bed.finish();
}

#[test]
fn unread_reports_of_a_user_are_bounded_over_all_connections() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    attack_bed.run_attack_as(Some(OTHER_UID), &["domain-crowd"]);
    let before = attack_bed.view().memory().unwrap().rss_bytes;
    attack_bed.run_attack_as(Some(OTHER_UID), &["hold-reports"]);
    let after = attack_bed.view().memory().unwrap().rss_bytes;
    assert!(after < before + (16 << 20), "{before} bytes became {after}");
    let options = Options { socket: Some(attack_bed.daemon.socket()), ..Options::default() };
    let report = QueryClient::connect(&options).and_then(|mut client| client.query(Topic::Domains, &[])).unwrap();
    assert!(report.len() > 64 << 10, "a report has only {} bytes", report.len());
    attack_bed.reset_baseline(); // An allocator keeps what the domains took.
    attack_bed.finish();
}

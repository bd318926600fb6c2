//! A daemon on a thread of its own, with a socket in a folder of its own, and clients that speak the protocol by hand.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use isthmus_config::{self as config, ConfigFile, Inputs, Role};
use isthmus_control::server::{Ended, Stop};
use isthmus_daemon::{Daemon, DaemonOptions};
use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, ReceiveError};
use isthmus_testbed::FdStore;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// A time limit that only failing tests reach.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the range of this minor version and the previous one.
pub(crate) fn versions_of(minor: u16) -> VersionRange {
    VersionRange::new(Version { major: VersionRange::CURRENT.version().major, minor }, minor.saturating_sub(1)).unwrap()
}

pub(crate) struct Testbed {
    folder: TempDir,
    daemon: Option<(Stop, JoinHandle<Ended>)>,
    /// The socket on which the daemon's stored descriptors arrive; `store` contains those that have arrived.
    manager: Option<OwnedFd>,
    store: FdStore,
}

impl Testbed {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// Starts a daemon with additional configuration.
    pub(crate) fn with(more: &str) -> Self {
        let mut bed = Self::empty();
        bed.start(more, VersionRange::CURRENT);
        bed
    }

    fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), daemon: None, manager: None, store: FdStore::default() }
    }

    /// Starts a daemon with additional configuration, and stores descriptors for the next daemon.
    pub(crate) fn with_fd_store(more: &str) -> Self {
        let mut bed = Self::empty();
        bed.restart_with_stored(more);
        bed
    }

    /// Starts a daemon with the descriptors that the previous one has stored.
    pub(crate) fn restart_with_stored(&mut self, more: &str) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let kept = self.store().copies().unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        self.manager = Some(ours);
        self.start_with(more, VersionRange::CURRENT, (kept, Some(theirs)));
    }

    /// Receives pending descriptors, and returns the store.
    pub(crate) fn store(&mut self) -> &FdStore {
        let (mut packet, mut fds) = ([0; 256], Vec::new());
        while let Some(manager) = &self.manager
            && let Ok(bytes) = seqpacket::receive(manager, &mut packet, &mut fds, false)
        {
            let fds = std::mem::take(&mut fds);
            self.store.take(str::from_utf8(&packet[..bytes]).unwrap(), fds);
        }
        &self.store
    }

    /// Waits until descriptors are stored under `count` names.
    pub(crate) fn wait_until_stored(&mut self, count: usize) {
        let begun = std::time::Instant::now();
        while self.store().names().len() != count {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", self.store);
        }
    }

    pub(crate) fn with_versions(versions: VersionRange) -> Self {
        let mut bed = Self::empty();
        bed.start("", versions);
        bed
    }

    /// Connects as another user. Returns `None` if this process cannot change its user.
    pub(crate) fn greeted_as(&self, uid: u32) -> Option<Client> {
        self.greeted_as_version(uid, VersionRange::CURRENT)
    }

    /// As [`Self::greeted_as`], with a library of these versions.
    pub(crate) fn greeted_as_version(&self, uid: u32, versions: VersionRange) -> Option<Client> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let path = self.socket();
        // The kernel reports the credentials of the connecting thread, and a thread may have another user than its process.
        let connect = move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            seqpacket::connect(&path).unwrap()
        };
        let mut client = Client::new(std::thread::spawn(connect).join().unwrap());
        client.greet_with(versions);
        Some(client)
    }

    pub(crate) fn start(&mut self, more: &str, versions: VersionRange) {
        self.start_with(more, versions, (Vec::new(), None));
    }

    fn start_with(
        &mut self,
        more: &str,
        versions: VersionRange,
        (restored_fds, fd_store): (Vec<(String, OwnedFd)>, Option<OwnedFd>),
    ) {
        let folder = self.folder.path().join("run");
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), everybody).unwrap();
        let text = format!(
            "[wait]\nmode = \"sleep\"\n[daemon]\nsocket = \"{}/isthmus.sock\"\nruntime_dir = \"{}\"\n{more}",
            folder.display(),
            self.runtime_dir().display()
        );
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: text.into_bytes() };
        let uid = rustix::process::geteuid().as_raw();
        let loaded =
            config::load(&Inputs { file, uid, ..Inputs::bare(Role::User) }).unwrap_or_else(|error| panic!("{error}"));
        let (ready_sender, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let options =
                DaemonOptions { versions, signals: false, restored_fds, fd_store, ..DaemonOptions::new(loaded) };
            let daemon = Daemon::open(options).unwrap();
            let stop = daemon.stop();
            daemon.run(move || ready_sender.send(stop).unwrap()).unwrap()
        });
        self.daemon = Some((ready.recv_timeout(TIMEOUT).unwrap(), thread));
    }

    /// Stops the daemon in an orderly way.
    pub(crate) fn stop(&mut self) -> Option<Ended> {
        let (stop, thread) = self.daemon.take()?;
        stop.stop();
        Some(thread.join().unwrap())
    }

    /// Waits until the daemon ends without a request to stop.
    pub(crate) fn ended(&mut self) -> Ended {
        self.daemon.take().unwrap().1.join().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/isthmus.sock")
    }

    /// The folder with the files for the next daemon. It does not exist before the first one.
    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens a connection without a handshake.
    pub(crate) fn connect(&self) -> Client {
        Client::new(seqpacket::connect(&self.socket()).unwrap())
    }

    /// Opens a connection and completes the handshake.
    pub(crate) fn greeted(&self) -> Client {
        let mut client = self.connect();
        client.greet();
        client
    }

    /// Attaches a domain.
    pub(crate) fn attached(&self, name: &str) -> (Client, AttachedDomain) {
        let mut client = self.greeted();
        let welcomed = client.attach(Some(name)).unwrap();
        (client, welcomed)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

pub(crate) struct AttachedDomain {
    pub(crate) message: Welcome,
    pub(crate) fds: Vec<OwnedFd>,
}

impl AttachedDomain {
    pub(crate) fn id(&self) -> DomainId {
        self.message.domain
    }
}

/// A message of the daemon.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) serial: Option<RequestSerial>,
    pub(crate) message: ToClient,
    pub(crate) fds: Vec<OwnedFd>,
}

pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    serial: RequestSerial,
    kept: VecDeque<ReceivedMessage>,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, serial: RequestSerial::new(1).unwrap(), kept: VecDeque::new() }
    }

    pub(crate) fn greet(&mut self) {
        self.greet_with(VersionRange::CURRENT);
    }

    fn greet_with(&mut self, versions: VersionRange) {
        let hello = Hello { magic: Magic, versions, library: name("test 1") };
        let heard = self.request(hello, &[]).unwrap();
        assert!(matches!(heard.message, ToClient::HelloReply(_)), "{heard:?}");
    }

    pub(crate) fn attach(&mut self, called: Option<&str>) -> Result<AttachedDomain, Reason> {
        self.attach_with(Attach { name: called.map(name), resume: None }, &[])
    }

    pub(crate) fn attach_with(&mut self, attach: Attach, fds: &[BorrowedFd<'_>]) -> Result<AttachedDomain, Reason> {
        let heard = self.request(attach, fds)?;
        match heard.message {
            ToClient::Welcome(message) => Ok(AttachedDomain { message, fds: heard.fds }),
            other => panic!("no welcome but {other:?}"),
        }
    }

    /// Sends a message and returns its serial.
    pub(crate) fn send(&mut self, message: impl Into<ToDaemon>, fds: &[BorrowedFd<'_>]) -> RequestSerial {
        let serial = self.serial;
        self.serial = serial.next();
        self.send_raw(&message.into().emit(Some(serial)), fds).unwrap();
        serial
    }

    pub(crate) fn send_raw(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), seqpacket::SendError> {
        seqpacket::send(&self.socket, packet, fds)
    }

    /// Sends a request and returns the reply. Other messages are kept for later.
    pub(crate) fn request(
        &mut self,
        message: impl Into<ToDaemon>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<ReceivedMessage, Reason> {
        let serial = self.send(message, fds);
        let heard = self.receive_matching(|heard| heard.serial == Some(serial));
        match heard.message {
            ToClient::Refused(refused) => Err(refused.reason),
            _ => Ok(heard),
        }
    }

    /// Sends a request to a daemon that may be gone. Returns `None` if it is.
    pub(crate) fn try_request(&mut self, message: impl Into<ToDaemon>) -> Option<ToClient> {
        let packet = message.into().emit(Some(self.serial));
        self.serial = self.serial.next();
        let _ = self.send_raw(&packet, &[]);
        self.receive().ok().map(|heard| heard.message)
    }

    /// Returns the next message that `wanted` accepts. Others are kept for later.
    pub(crate) fn receive_matching(&mut self, wanted: impl Fn(&ReceivedMessage) -> bool) -> ReceivedMessage {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).unwrap();
        }
        loop {
            let heard = self.receive().unwrap_or_else(|error| panic!("the daemon says nothing: {error}"));
            if wanted(&heard) {
                return heard;
            }
            self.kept.push_back(heard);
        }
    }

    /// Returns the next message that is not a ring.
    pub(crate) fn receive_message(&mut self) -> ReceivedMessage {
        self.receive_matching(|heard| !matches!(heard.message, ToClient::Wakeup(_)))
    }

    /// Receives the next packet from the socket.
    pub(crate) fn receive(&self) -> Result<ReceivedMessage, ReceiveError> {
        let (mut packet, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::new());
        self.wait();
        let bytes = seqpacket::receive(&self.socket, &mut packet, &mut fds, false)?;
        let (serial, message) = ToClient::parse(&packet[..bytes], fds.len()).unwrap();
        Ok(ReceivedMessage { serial, message, fds })
    }

    fn wait(&self) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let limit = Timespec::try_from(TIMEOUT).unwrap();
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nothing came in {TIMEOUT:?}");
    }

    /// Checks that no message is pending once the daemon has answered a request.
    pub(crate) fn expect_no_message(&mut self) {
        let _ = self.request(Lookup { name: name("unknown") }, &[]);
        self.kept.retain(|heard| !matches!(heard.message, ToClient::Wakeup(_)));
        assert!(self.kept.is_empty(), "{:?}", self.kept);
    }

    /// Waits for the end of the connection, and returns the daemon's reason.
    pub(crate) fn ended(&mut self) -> Option<Reason> {
        let mut reason = None;
        loop {
            match self.receive() {
                Ok(ReceivedMessage { serial: None, message: ToClient::Refused(refused), .. }) => {
                    reason = Some(refused.reason)
                }
                Ok(_) => {}
                Err(ReceiveError::Closed) => return reason,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Requests a report.
    pub(crate) fn report<T: serde::de::DeserializeOwned>(
        &mut self,
        topic: Topic,
        arguments: &[&str],
    ) -> Result<T, Reason> {
        self.report_text(topic, arguments).map(|json| serde_json::from_str(&json).unwrap())
    }

    /// Requests a report, and returns its JSON.
    pub(crate) fn report_text(&mut self, topic: Topic, arguments: &[&str]) -> Result<String, Reason> {
        let arguments = List::new(arguments.iter().map(|argument| name(argument)).collect()).unwrap();
        let serial = self.send(Query { topic, arguments }, &[]);
        let mut json = Vec::new();
        loop {
            let heard = self.receive_matching(|heard| heard.serial == Some(serial));
            match heard.message {
                ToClient::QueryReply(answer) => {
                    json.extend_from_slice(&answer.json);
                    if answer.last {
                        return Ok(String::from_utf8(json).unwrap());
                    }
                }
                ToClient::Refused(refused) => return Err(refused.reason),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn offered(&mut self) -> (ChannelOffer, Vec<OwnedFd>) {
        let heard = self.receive_matching(|heard| matches!(heard.message, ToClient::ChannelOffer(_)));
        match heard.message {
            ToClient::ChannelOffer(offer) => (offer, heard.fds),
            _ => unreachable!(),
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens a channel and returns the offers to both sides.
pub(crate) fn channel(
    connector: &mut Client,
    listener: &mut Client,
    peer: DomainId,
) -> [(ChannelOffer, Vec<OwnedFd>); 2] {
    connector.send(RequestChannel { peer, attempt: 1 }, &[]);
    let (theirs, ours) = (listener.offered(), connector.offered());
    let channel = theirs.0.channel;
    listener.send(AcceptChannel { channel }, &[]);
    let open = connector.receive_matching(|heard| matches!(heard.message, ToClient::ChannelOpen(_)));
    assert_eq!(open.message, ToClient::ChannelOpen(ChannelOpen { channel }));
    [ours, theirs]
}

/// Returns the identity of the file behind a descriptor.
pub(crate) fn inode(fd: &OwnedFd) -> (u64, u64) {
    let stat = rustix::fs::fstat(fd).unwrap();
    (stat.st_dev, stat.st_ino)
}

/// Returns the number of descriptors of this process.
pub(crate) fn descriptors() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

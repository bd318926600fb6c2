//! Serves the counters to Prometheus, at `/metrics`. It implements only as much of HTTP as a scrape needs.
//!
//! A connection waits for no other one. When there are too many, the oldest one without a request is closed: a scraper sends its request at once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use isthmus_platform::folder::{self, FolderProblem, Purpose};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, spawn_local};

use isthmus_config::MetricsListen;
use isthmus_control::server::Server;

/// The number of connections at a time.
const CONNECTIONS_MAX: usize = 16;

/// The number of connections for which the counters are read at a time; others wait.
const READERS_MAX: usize = 4;

/// The maximum length of a request in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The time of a connection, from its start to the last byte of the response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after the process could not open another descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listener for scrapes.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    listener: MetricsListener,
}

#[derive(Debug)]
enum MetricsListener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl MetricsServer {
    /// Listens at the configured address; none if there is none.
    pub(crate) fn open(listen: &MetricsListen) -> io::Result<Option<Self>> {
        let listener = match listen {
            MetricsListen::Off => return Ok(None),
            MetricsListen::Unix(path) => {
                check_folder(path.path().parent().unwrap_or(Path::new("/")))?;
                remove_stale(path.path());
                MetricsListener::Unix(UnixListener::bind(path.path())?, path.path().to_owned())
            }
            MetricsListen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                MetricsListener::Tcp(TcpListener::from_std(listener)?)
            }
        };
        Ok(Some(Self { listener }))
    }

    /// Serves requests as long as the server runs.
    pub(crate) async fn run(self, server: Server) {
        let readers = Rc::new(Semaphore::new(READERS_MAX));
        let mut connections = Connections::default();
        loop {
            let request = Request { server: server.clone(), readers: Rc::clone(&readers), has_request: Rc::default() };
            let accepted = match &self.listener {
                MetricsListener::Unix(listener, _) => {
                    listener.accept().await.map(|(stream, _)| connections.add(stream, request))
                }
                MetricsListener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| connections.add(stream, request))
                }
            };
            if accepted.is_err() {
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let MetricsListener::Unix(_, path) = &self.listener {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket of a daemon that has died. Any other file stays, and binding fails.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

/// Refuses a folder in which another user could lead root to other files.
fn check_folder(folder: &Path) -> io::Result<()> {
    folder::open(folder, Purpose::Write).map(drop).map_err(|error| match error.reason {
        FolderProblem::Refused(errno) => errno.into(),
        _ => io::Error::other(error),
    })
}

/// The connections that are served, the oldest one first.
#[derive(Default)]
struct Connections(VecDeque<Connection>);

struct Connection {
    task: AbortHandle,
    has_request: Rc<Cell<bool>>,
}

impl Connections {
    /// Serves a connection. If there are too many, one that has sent no request is closed, else the oldest one.
    fn add(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, request: Request) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() >= CONNECTIONS_MAX {
            let silent = self.0.iter().position(|connection| !connection.has_request.get());
            if let Some(closed) = self.0.remove(silent.unwrap_or(0)) {
                closed.task.abort();
            }
        }
        let has_request = Rc::clone(&request.has_request);
        let task = spawn_local(async move {
            // A scraper that goes away or is slow gets no response.
            let _ = tokio::time::timeout(TIMEOUT, request.serve(stream)).await;
        });
        self.0.push_back(Connection { task: task.abort_handle(), has_request });
    }
}

/// One connection of a scraper.
struct Request {
    server: Server,
    readers: Rc<Semaphore>,
    /// Set when the request has been read.
    has_request: Rc<Cell<bool>>,
}

impl Request {
    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut chunk).await? {
                0 => return Ok(()),
                read => request.extend_from_slice(&chunk[..read]),
            }
            if request.len() > REQUEST_BYTES_MAX {
                return Ok(());
            }
        }
        self.has_request.set(true);
        let (status, content_type, text) = if is_for_metrics(&request) {
            let _reader = self.readers.acquire().await.map_err(io::Error::other)?;
            let text = self.server.metrics().await.map_err(io::Error::other)?;
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
        } else {
            ("404 Not Found", "text/plain; charset=utf-8", "The metrics are at GET /metrics.\n".to_owned())
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    }
}

/// Returns whether a request asks for the metrics. A query after the path changes nothing.
fn is_for_metrics(request: &[u8]) -> bool {
    let target = request.strip_prefix(b"GET ").and_then(|rest| rest.split(|byte| *byte == b' ').next());
    target.and_then(|target| target.split(|byte| *byte == b'?').next()) == Some(b"/metrics")
}

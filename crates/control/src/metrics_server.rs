//! Serves the counters to Prometheus: any request on this listener gets them. It implements only as much of HTTP as a scrape needs.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;

use crate::server::Server;
use isthmus_config::MetricsListen;

/// The number of requests at once; others wait.
const REQUESTS_MAX: usize = 4;

/// The maximum length of a request in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The time for one request, from its first byte to the last of the response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after the process could not open another descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listener for scrapes.
#[derive(Debug)]
pub struct MetricsServer {
    listener: MetricsListener,
}

#[derive(Debug)]
enum MetricsListener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl MetricsServer {
    /// Listens at the configured address; none if there is none.
    pub fn open(listen: &MetricsListen) -> io::Result<Option<Self>> {
        let listener = match listen {
            MetricsListen::Off => return Ok(None),
            MetricsListen::Unix(path) => {
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
    pub async fn run(self, server: Server) {
        let permits = Arc::new(Semaphore::new(REQUESTS_MAX));
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            let accepted = match &self.listener {
                MetricsListener::Unix(listener, _) => {
                    listener.accept().await.map(|(stream, _)| serve(stream, server.clone(), permit))
                }
                MetricsListener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| serve(stream, server.clone(), permit))
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

fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, server: Server, permit: OwnedSemaphorePermit) {
    spawn_local(async move {
        // A scraper that goes away or is slow gets no response.
        let _ = tokio::time::timeout(TIMEOUT, respond(stream, &server)).await;
        drop(permit);
    });
}

async fn respond(mut stream: impl AsyncRead + AsyncWrite + Unpin, server: &Server) -> io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            read => request.extend_from_slice(&chunk[..read]),
        }
    }
    let text = server.metrics().await.map_err(io::Error::other)?;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

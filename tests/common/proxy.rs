//! A TCP proxy in front of a server that breaks connections on demand.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to new bytes and connections, until changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Replies are lost; requests are executed.
    SwallowReplies,
    /// Requests are lost.
    SwallowRequests,
    /// Nothing gets through in either direction, and nothing is closed.
    BlackHole,
    /// Bytes are late, in each direction.
    Delay(Duration),
    /// New connections are closed at once.
    Refuse,
}

type Predicate = Box<dyn Fn(&[u8]) -> bool + Send>;

struct Shared {
    mode: Mutex<Mode>,
    /// The next request that matches is executed; its reply is lost and its connection closed.
    lose_reply_of: Mutex<Option<Predicate>>,
    lost: watch::Sender<u64>,
    reset: watch::Sender<u64>,
    connections: Mutex<u64>,
}

/// Stops when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Pass),
            lose_reply_of: Mutex::new(None),
            lost: watch::Sender::new(0),
            reset: watch::Sender::new(0),
            connections: Mutex::new(0),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *accepting.mode.lock() == Mode::Refuse {
                    continue;
                }
                *accepting.connections.lock() += 1;
                tokio::spawn(connection(accepting.clone(), client, target));
            }
        });
        Proxy { shared, port, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock() = mode;
    }

    /// Closes every connection now.
    pub fn reset_all(&self) {
        self.shared.reset.send_modify(|n| *n += 1);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        *self.shared.connections.lock()
    }

    /// The next chunk from a client that matches is executed; then, reply lost, its connection is closed.
    pub fn lose_reply_of(&self, matches: impl Fn(&[u8]) -> bool + Send + 'static) {
        *self.shared.lose_reply_of.lock() = Some(Box::new(matches));
    }

    /// How many replies were lost that way.
    pub fn lost(&self) -> u64 {
        *self.shared.lost.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.reset_all();
    }
}

/// Whether a chunk holds these bytes.
pub fn contains(chunk: &[u8], needle: &str) -> bool {
    chunk.windows(needle.len()).any(|w| w == needle.as_bytes())
}

async fn connection(shared: Arc<Shared>, client: TcpStream, target: u16) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let (doomed, doom) = watch::channel(false);
    let mut reset = shared.reset.subscribe();
    tokio::select! {
        () = up(shared.clone(), client_read, server_write, doomed) => {}
        () = down(shared.clone(), server_read, client_write, doom) => {}
        _ = reset.changed() => {}
    }
}

async fn up(shared: Arc<Shared>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, doomed: watch::Sender<bool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let chunk = &buffer[..n];
        if shared.lose_reply_of.lock().take_if(|matches| matches(chunk)).is_some() {
            doomed.send_replace(true);
        }
        let mode = *shared.mode.lock();
        match mode {
            Mode::SwallowRequests | Mode::BlackHole => continue,
            Mode::Delay(by) => tokio::time::sleep(by).await,
            _ => {}
        }
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

async fn down(shared: Arc<Shared>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, doom: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if *doom.borrow() {
            shared.lost.send_modify(|n| *n += 1);
            return;
        }
        let mode = *shared.mode.lock();
        match mode {
            Mode::SwallowReplies | Mode::BlackHole => continue,
            Mode::Delay(by) => tokio::time::sleep(by).await,
            _ => {}
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

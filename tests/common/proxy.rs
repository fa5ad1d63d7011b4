//! A TCP proxy in front of a server that breaks connections on demand: all of them ([`Mode`]), or one request ([`Fault`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What happens to bytes and new connections, until changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Replies are lost; requests are executed. A connection that lost bytes is of no use afterwards: reset it.
    SwallowReplies,
    /// Requests are lost.
    SwallowRequests,
    /// Both are lost, and nothing is closed.
    BlackHole,
    /// Nothing moves; what was sent meanwhile arrives when the mode changes, as after a short break of the network.
    Stall,
    /// Bytes are late by that much, in each direction.
    Delay(Duration),
    /// New connections are reset at once.
    Refuse,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is executed; instead of its reply comes the end of the connection.
    LoseReply,
    /// It is not executed, and its connection ends.
    LoseRequest,
    /// It is executed, but that much later; so is what follows it on its connection.
    Late(Duration),
}

type Predicate = Box<dyn Fn(&[u8]) -> bool + Send>;

struct Shared {
    mode: watch::Sender<Mode>,
    /// Faults for the next chunk that matches, each for one.
    faults: Mutex<Vec<(Predicate, Fault)>>,
    struck: watch::Sender<u64>,
    reset: watch::Sender<u64>,
    accepted: AtomicU64,
    open: AtomicU64,
}

/// Stops, and resets its connections, when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// In front of a port of this machine.
    pub async fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let shared = Arc::new(Shared {
            mode: watch::Sender::new(Mode::Pass),
            faults: Mutex::default(),
            struck: watch::Sender::new(0),
            reset: watch::Sender::new(0),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *accepting.mode.borrow() == Mode::Refuse {
                    let _ = client.set_zero_linger();
                    continue;
                }
                accepting.accepted.fetch_add(1, Ordering::SeqCst);
                accepting.open.fetch_add(1, Ordering::SeqCst);
                let shared = accepting.clone();
                let reset = shared.reset.subscribe();
                tokio::spawn(async move {
                    connection(&shared, client, target, reset).await;
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
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

    /// From now on, for open connections too.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Ends every connection now, with a reset on both sides.
    pub fn reset_all(&self) {
        self.shared.reset.send_modify(|n| *n += 1);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// A fault for the next chunk of requests that matches ([`contains`] helps), once. A chunk is what came in one read: a
    /// request, or several that were sent together.
    pub fn on_next(&self, matches: impl Fn(&[u8]) -> bool + Send + 'static, fault: Fault) {
        self.shared.faults.lock().push((Box::new(matches), fault));
    }

    /// The next request that matches is executed; then, reply lost, its connection ends.
    pub fn lose_reply_of(&self, matches: impl Fn(&[u8]) -> bool + Send + 'static) {
        self.on_next(matches, Fault::LoseReply);
    }

    /// How many replies and requests were lost by [`Fault`]s, or late.
    pub fn lost(&self) -> u64 {
        *self.shared.struck.borrow()
    }

    /// Waits until that many were.
    pub async fn until_lost(&self, count: u64, within: Duration) {
        let mut struck = self.shared.struck.subscribe();
        let waited = tokio::time::timeout(within, struck.wait_for(|n| *n >= count)).await;
        assert!(waited.is_ok(), "not within {within:?}: {count} requests with a fault");
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

/// How a connection ended.
enum End {
    Closed,
    Fault,
}

async fn connection(shared: &Shared, mut client: TcpStream, target: u16, mut reset: watch::Receiver<u64>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let doomed = AtomicBool::new(false);
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    let end = tokio::select! {
        end = requests(shared, client_read, server_write, &doomed) => Some(end),
        end = replies(shared, server_read, client_write, &doomed) => Some(end),
        _ = reset.changed() => None,
    };
    match end {
        Some(End::Closed) => {}
        // The server's side is closed in order: it still reads what it was sent.
        Some(End::Fault) => drop(client.set_zero_linger()),
        None => drop((client.set_zero_linger(), server.set_zero_linger())),
    }
}

async fn requests(shared: &Shared, from: ReadHalf<'_>, to: WriteHalf<'_>, doomed: &AtomicBool) -> End {
    let mut pipe = Pipe::new(shared, from, to);
    loop {
        let Some(chunk) = pipe.next().await else { return End::Closed };
        let fault = {
            let mut faults = shared.faults.lock();
            faults.iter().position(|(matches, _)| matches(&chunk)).map(|at| faults.remove(at).1)
        };
        let mode = *shared.mode.borrow();
        if matches!(mode, Mode::SwallowRequests | Mode::BlackHole) {
            continue;
        }
        let mut late = Duration::ZERO;
        match fault {
            Some(Fault::LoseRequest) => {
                shared.struck.send_modify(|n| *n += 1);
                return End::Fault;
            }
            Some(Fault::Late(by)) => {
                shared.struck.send_modify(|n| *n += 1);
                late = by;
            }
            Some(Fault::LoseReply) => {
                // Only what comes after it is written can be its reply.
                pipe.push(chunk, late);
                if !pipe.flush().await {
                    return End::Closed;
                }
                doomed.store(true, Ordering::SeqCst);
                continue;
            }
            None => {}
        }
        pipe.push(chunk, late);
    }
}

async fn replies(shared: &Shared, from: ReadHalf<'_>, to: WriteHalf<'_>, doomed: &AtomicBool) -> End {
    let mut pipe = Pipe::new(shared, from, to);
    loop {
        let Some(chunk) = pipe.next().await else { return End::Closed };
        if doomed.load(Ordering::SeqCst) {
            shared.struck.send_modify(|n| *n += 1);
            return End::Fault;
        }
        let mode = *shared.mode.borrow();
        if !matches!(mode, Mode::SwallowReplies | Mode::BlackHole) {
            pipe.push(chunk, Duration::ZERO);
        }
    }
}

/// One direction: bytes in order, each not before its time.
struct Pipe<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    mode: watch::Receiver<Mode>,
    queue: VecDeque<(Instant, Vec<u8>)>,
    buffer: Vec<u8>,
}

impl<'a> Pipe<'a> {
    fn new(shared: &Shared, from: ReadHalf<'a>, to: WriteHalf<'a>) -> Pipe<'a> {
        Pipe { from, to, mode: shared.mode.subscribe(), queue: VecDeque::new(), buffer: vec![0; 64 * 1024] }
    }

    /// The next bytes, sending on meanwhile what is due. `None` when an end is closed.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let stalled = *self.mode.borrow_and_update() == Mode::Stall;
            let now = Instant::now();
            while !stalled && self.queue.front().is_some_and(|(due, _)| *due <= now) {
                let (_, chunk) = self.queue.pop_front()?;
                self.to.write_all(&chunk).await.ok()?;
            }
            let due = self.queue.front().map_or(now, |(due, _)| *due);
            tokio::select! {
                read = self.from.read(&mut self.buffer) => match read {
                    Ok(n @ 1..) => return Some(self.buffer[..n].to_vec()),
                    _ => {
                        self.flush().await;
                        return None;
                    }
                },
                () = sleep_until(due), if !stalled && !self.queue.is_empty() => {}
                changed = self.mode.changed() => changed.ok()?,
            }
        }
    }

    fn push(&mut self, chunk: Vec<u8>, late: Duration) {
        let delay = if let Mode::Delay(by) = *self.mode.borrow() { by } else { Duration::ZERO };
        let due = Instant::now() + delay + late;
        // Never before what was sent earlier.
        let due = self.queue.back().map_or(due, |(last, _)| due.max(*last));
        self.queue.push_back((due, chunk));
    }

    /// Sends on all that is queued, when it is due; false if the other end is closed.
    async fn flush(&mut self) -> bool {
        while let Some((due, chunk)) = self.queue.pop_front() {
            sleep_until(due).await;
            if self.mode.wait_for(|mode| *mode != Mode::Stall).await.is_err()
                || self.to.write_all(&chunk).await.is_err()
            {
                return false;
            }
        }
        true
    }
}

//! What this room relies on, tried on a real server: fred's behaviour at its edges, and the scripts' effects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use fred::types::Resp3Frame as Frame;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::op::*;
use super::{Endpoint, Heard, Lane, LaneSettings, Subscriber, codec, connect};
use crate::error::{ConnectError, ConnectErrorKind};
use crate::lease::Lease;
use crate::names::LockName;

const CLIENT: &str = "9f0c1b1e-0000-4000-8000-000000000001";

// A server of one's own.

struct Server {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server::start_on(port, args)
    }

    fn start_on(port: u16, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
            .args(args)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server on PATH");
        let server = Server { child, port, _dir: dir };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(server.addr()).is_err() {
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn probe(&self) -> Probe {
        let stream = TcpStream::connect(self.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Probe(BufReader::new(stream))
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection beside fred: each reply flattened to text.
struct Probe(BufReader<TcpStream>);

impl Probe {
    fn ask(&mut self, command: &str) -> String {
        self.ask_args(&command.split(' ').collect::<Vec<_>>())
    }

    fn ask_args(&mut self, args: &[&str]) -> String {
        let mut out = format!("*{}\r\n", args.len());
        for arg in args {
            out.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.0.get_mut().write_all(out.as_bytes()).unwrap();
        self.read()
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        match kind {
            "$" if rest == "-1" => "nil".into(),
            "$" => {
                let mut body = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut body).unwrap();
                String::from_utf8_lossy(&body[..body.len() - 2]).into()
            }
            "*" if rest == "-1" => "nil".into(),
            "*" => (0..rest.parse::<usize>().unwrap()).map(|_| self.read()).collect::<Vec<_>>().join(" "),
            _ => rest.into(),
        }
    }

    /// How often a command was executed.
    fn calls(&mut self, command: &str) -> u64 {
        let stats = self.ask("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse().unwrap())
    }
}

// A proxy that loses things.

const PASS: u8 = 0;
/// The next reply is swallowed, and the connection cut.
const CUT_REPLY: u8 = 1;
/// Nobody gets through.
const REFUSE: u8 = 2;

struct Proxy {
    port: u16,
    mode: Arc<AtomicU8>,
}

impl Proxy {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(AtomicU8::new(PASS));
        let shared = mode.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.load(Ordering::SeqCst) == REFUSE {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
                let mode = shared.clone();
                std::thread::spawn(move || {
                    let (mut from, mut to) = (server, client);
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut buffer) {
                        if mode.load(Ordering::SeqCst) != PASS {
                            let _ = mode.compare_exchange(CUT_REPLY, PASS, Ordering::SeqCst, Ordering::SeqCst);
                            break;
                        }
                        if to.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Proxy { port, mode }
    }
}

// What the lane tells.

struct Ear {
    answers: mpsc::UnboundedSender<(u32, Answer)>,
    connections: mpsc::UnboundedSender<()>,
}

impl Listener<u32> for Ear {
    fn answered(&self, tag: u32, answer: Answer) {
        let _ = self.answers.send((tag, answer));
    }

    fn connected(&self) {
        let _ = self.connections.send(());
    }
}

struct Rig {
    lane: Lane<u32>,
    answers: mpsc::UnboundedReceiver<(u32, Answer)>,
    connections: mpsc::UnboundedReceiver<()>,
}

impl Rig {
    async fn connect(port: u16) -> Self {
        Rig::connect_with(port, Duration::from_secs(2), 3).await
    }

    async fn connect_with(port: u16, command_timeout: Duration, timeouts_before_reconnect: u32) -> Self {
        let (ear, answers, connections) = ear();
        let settings = LaneSettings { client_id: CLIENT.into(), command_timeout, timeouts_before_reconnect };
        let lane = Lane::connect(endpoint(&format!("redis://127.0.0.1:{port}")), settings, ear).await.unwrap();
        Rig { lane, answers, connections }
    }

    async fn next(&mut self) -> (u32, Answer) {
        let next = tokio::time::timeout(Duration::from_secs(10), self.answers.recv()).await;
        next.expect("an answer").unwrap()
    }

    async fn ask(&mut self, op: Op) -> Result<Reply, Failure> {
        self.lane.push(op, 0);
        self.next().await.1.result
    }

    async fn reconnected(&mut self) {
        tokio::time::timeout(Duration::from_secs(10), self.connections.recv()).await.expect("a new connection");
    }
}

fn ear() -> (Arc<Ear>, mpsc::UnboundedReceiver<(u32, Answer)>, mpsc::UnboundedReceiver<()>) {
    let (answers, answers_in) = mpsc::unbounded_channel();
    let (connections, connections_in) = mpsc::unbounded_channel();
    (Arc::new(Ear { answers, connections }), answers_in, connections_in)
}

fn endpoint(url: &str) -> Endpoint {
    Endpoint {
        url: url.into(),
        database: None,
        label: Some("a label".into()),
        connect_timeout: Duration::from_secs(5),
        wait_for_server: false,
    }
}

fn name(key: &str) -> Arc<LockName> {
    Arc::new(LockName::new(key, None))
}

fn lease(ms: u64) -> Lease {
    Lease::new(Duration::from_millis(ms)).unwrap()
}

fn acquire(key: &str, thread: u64, count: u32, ms: u64) -> Op {
    Op::Acquire { name: name(key), thread: ThreadId(thread), count, lease: lease(ms) }
}

fn release(key: &str, thread: u64, remaining: u32) -> Op {
    Op::Release { name: name(key), thread: ThreadId(thread), remaining }
}

fn renew(holds: &[(&str, u64)], ms: u64) -> Op {
    let holds = holds.iter().map(|(key, thread)| (name(key), ThreadId(*thread))).collect();
    Op::Renew { holds, lease: lease(ms) }
}

fn field(thread: u64) -> String {
    format!("{CLIENT}:{thread}")
}

async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// Scripts.

#[tokio::test]
async fn acquire_takes_reenters_and_never_lowers() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;

    assert_eq!(rig.ask(acquire("k", 1, 1, 5_000)).await.unwrap(), Reply::Acquired);
    assert_eq!(probe.ask("HGETALL k"), format!("{} 1", field(1)));
    // Sent again: the same effect. A shorter lease leaves the TTL alone, a longer one raises it.
    assert_eq!(rig.ask(acquire("k", 1, 1, 1_000)).await.unwrap(), Reply::Acquired);
    assert!((4_000..=5_000).contains(&probe.ask("PTTL k").parse::<i64>().unwrap()));
    assert_eq!(rig.ask(acquire("k", 1, 2, 60_000)).await.unwrap(), Reply::Acquired);
    assert!(probe.ask("PTTL k").parse::<i64>().unwrap() > 50_000);
    assert_eq!(probe.ask("HGETALL k"), format!("{} 2", field(1)));
    // A late repetition of the first does not take a hold away.
    assert_eq!(rig.ask(acquire("k", 1, 1, 1_000)).await.unwrap(), Reply::Acquired);
    assert_eq!(probe.ask("HGETALL k"), format!("{} 2", field(1)));
    // Others.
    let Reply::Held { ttl: Some(ttl) } = rig.ask(acquire("k", 2, 1, 1_000)).await.unwrap() else { panic!() };
    assert!(ttl > Duration::from_secs(50));
    assert_eq!(rig.ask(acquire("k", 2, 2, 1_000)).await.unwrap(), Reply::Gone);
    assert_eq!(rig.ask(acquire("none", 2, 2, 1_000)).await.unwrap(), Reply::Gone);
    assert_eq!(probe.ask("EXISTS none"), "0");
    probe.ask("PERSIST k");
    assert_eq!(rig.ask(acquire("k", 2, 1, 1_000)).await.unwrap(), Reply::Held { ttl: None });
    // A key without a TTL gets one.
    assert_eq!(rig.ask(acquire("k", 1, 3, 7_000)).await.unwrap(), Reply::Acquired);
    assert!(probe.ask("PTTL k").parse::<i64>().unwrap() > 6_000);
    rig.lane.close();
}

#[tokio::test]
async fn release_counts_down_and_tells() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut ears = server.probe();
    let mut rig = Rig::connect(server.port).await;
    ears.ask("SUBSCRIBE redisson_lock__channel:{k}");

    assert_eq!(rig.ask(release("k", 1, 0)).await.unwrap(), Reply::NotHolder { by: None });
    rig.ask(acquire("k", 1, 1, 5_000)).await.unwrap();
    rig.ask(acquire("k", 1, 3, 5_000)).await.unwrap();
    assert_eq!(rig.ask(release("k", 2, 0)).await.unwrap(), Reply::NotHolder { by: Some(field(1).into()) });
    assert_eq!(rig.ask(release("k", 1, 2)).await.unwrap(), Reply::Kept);
    assert_eq!(rig.ask(release("k", 1, 2)).await.unwrap(), Reply::Kept);
    assert_eq!(probe.ask("HGETALL k"), format!("{} 2", field(1)));
    // The last one goes whatever the count says.
    assert_eq!(rig.ask(release("k", 1, 0)).await.unwrap(), Reply::Released { receivers: Some(1) });
    assert_eq!(probe.ask("EXISTS k"), "0");
    assert_eq!(ears.read(), "message redisson_lock__channel:{k} 0");
    assert_eq!(rig.ask(release("k", 1, 0)).await.unwrap(), Reply::NotHolder { by: None });

    assert_eq!(rig.ask(Op::ForceRelease { name: name("k") }).await.unwrap(), Reply::Absent);
    rig.ask(acquire("k", 1, 1, 5_000)).await.unwrap();
    assert_eq!(rig.ask(Op::ForceRelease { name: name("k") }).await.unwrap(), Reply::Released { receivers: Some(1) });
    assert_eq!(ears.read(), "message redisson_lock__channel:{k} 0");
    rig.lane.close();
}

#[tokio::test]
async fn renewal_isolates_each_key() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(acquire("a", 1, 1, 1_000)).await.unwrap();
    rig.ask(acquire("long", 2, 1, 90_000)).await.unwrap();
    probe.ask("SET text x");
    let Reply::Renewed(each) =
        rig.ask(renew(&[("a", 1), ("text", 3), ("none", 4), ("a", 9), ("long", 2)], 30_000)).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(each[0], Renewal::Renewed);
    assert!(matches!(&each[1], Renewal::Failed(refusal) if refusal.kind == RefusalKind::WrongType), "{each:?}");
    assert_eq!(each[2..], [Renewal::NotHeld, Renewal::NotHeld, Renewal::Renewed]);
    assert!(probe.ask("PTTL a").parse::<i64>().unwrap() > 25_000);
    assert!(probe.ask("PTTL long").parse::<i64>().unwrap() > 80_000);
    assert_eq!(probe.ask("EXISTS none"), "0");
    assert_eq!(probe.ask("PTTL text"), "-1");
    rig.lane.close();
}

#[tokio::test]
async fn questions_are_answered() {
    let server = Server::start(&[]);
    let mut rig = Rig::connect(server.port).await;
    let k = name("k");
    assert_eq!(rig.ask(Op::Exists { name: k.clone() }).await.unwrap(), Reply::Exists(false));
    assert_eq!(rig.ask(Op::TimeToLive { name: k.clone() }).await.unwrap(), Reply::TimeToLive(TimeToLive::Absent));
    assert_eq!(rig.ask(Op::HoldCount { name: k.clone(), thread: ThreadId(1) }).await.unwrap(), Reply::HoldCount(0));
    let nothing = Reply::Inspected { holders: vec![], ttl: TimeToLive::Absent, subscribers: Some(0) };
    assert_eq!(rig.ask(Op::Inspect { name: k.clone() }).await.unwrap(), nothing);
    rig.ask(acquire("k", 1, 1, 5_000)).await.unwrap();
    rig.ask(acquire("k", 1, 2, 5_000)).await.unwrap();
    assert_eq!(rig.ask(Op::Exists { name: k.clone() }).await.unwrap(), Reply::Exists(true));
    let ttl = rig.ask(Op::TimeToLive { name: k.clone() }).await.unwrap();
    assert!(matches!(ttl, Reply::TimeToLive(TimeToLive::Left(left)) if left > Duration::from_secs(4)));
    assert_eq!(rig.ask(Op::HoldCount { name: k.clone(), thread: ThreadId(1) }).await.unwrap(), Reply::HoldCount(2));
    let Reply::Inspected { holders, ttl: TimeToLive::Left(_), subscribers: Some(0) } =
        rig.ask(Op::Inspect { name: k.clone() }).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(holders, [(field(1).into(), 2)]);
    assert_eq!(rig.ask(Op::KillConnection { id: 999_999 }).await.unwrap(), Reply::Killed);
    rig.lane.close();
}

#[tokio::test]
async fn another_type_at_the_key_is_left_alone() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    probe.ask("SET k precious");
    for op in [
        acquire("k", 1, 1, 1_000),
        acquire("k", 1, 2, 1_000),
        release("k", 1, 0),
        release("k", 1, 1),
        Op::ForceRelease { name: name("k") },
        Op::Inspect { name: name("k") },
        Op::HoldCount { name: name("k"), thread: ThreadId(1) },
    ] {
        match rig.ask(op.clone()).await {
            Err(Failure::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::WrongType, "{op:?}"),
            other => panic!("{op:?}: {other:?}"),
        }
    }
    assert_eq!(probe.ask("GET k"), "precious");
    assert_eq!(probe.ask("PTTL k"), "-1");
    rig.lane.close();
}

#[tokio::test]
async fn rights_that_are_missing_leave_nothing_half_done() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let connect = |user: &str| {
        let url = format!("redis://{user}:pw@127.0.0.1:{}", server.port);
        async move {
            let (ear, answers, connections) = ear();
            let settings = LaneSettings {
                client_id: CLIENT.into(),
                command_timeout: Duration::from_secs(2),
                timeouts_before_reconnect: 3,
            };
            let lane = Lane::connect(endpoint(&url), settings, ear).await.unwrap();
            Rig { lane, answers, connections }
        }
    };
    let permission = |result: Result<Reply, Failure>| match result {
        Err(Failure::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::Permission, "{}", refusal.message),
        other => panic!("{other:?}"),
    };

    // Without PEXPIRE no lock that never ends.
    probe.ask("ACL SETUSER u1 on >pw ~* &* +@all -pexpire");
    let mut rig = connect("u1").await;
    permission(rig.ask(acquire("k", 1, 1, 1_000)).await);
    assert_eq!(probe.ask("EXISTS k"), "0");
    rig.lane.close();

    // Without the right to publish the lock is released all the same. Key patterns need not cover the channel.
    probe.ask("ACL SETUSER u2 on >pw ~app:* resetchannels +@all");
    let mut rig = connect("u2").await;
    rig.ask(acquire("app:k", 1, 1, 1_000)).await.unwrap();
    assert_eq!(rig.ask(release("app:k", 1, 0)).await.unwrap(), Reply::Released { receivers: None });
    assert_eq!(probe.ask("EXISTS app:k"), "0");
    rig.ask(acquire("app:k", 1, 1, 1_000)).await.unwrap();
    assert_eq!(rig.ask(Op::ForceRelease { name: name("app:k") }).await.unwrap(), Reply::Released { receivers: None });
    permission(rig.ask(acquire("other", 1, 1, 1_000)).await);
    rig.lane.close();

    // The least that is needed: neither CLIENT nor SCRIPT.
    probe.ask("ACL SETUSER u3 on >pw ~* &* +evalsha +eval +ping +hexists +hset +pttl +pexpire +hkeys +del +publish");
    let mut rig = connect("u3").await;
    assert_eq!(rig.ask(acquire("k3", 1, 1, 1_000)).await.unwrap(), Reply::Acquired);
    assert_eq!(rig.ask(release("k3", 1, 0)).await.unwrap(), Reply::Released { receivers: Some(0) });
    assert_eq!(rig.lane.connection_id(rig.lane.epoch()), None);
    rig.lane.close();
}

#[tokio::test]
async fn the_last_release_needs_no_memory() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(acquire("k", 1, 1, 60_000)).await.unwrap();
    rig.ask(acquire("k", 1, 2, 60_000)).await.unwrap();
    probe.ask("CONFIG SET maxmemory 1");
    for op in [acquire("other", 2, 1, 1_000), release("k", 1, 1)] {
        match rig.ask(op).await {
            Err(Failure::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::OutOfMemory),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rig.ask(renew(&[("k", 1)], 90_000)).await.unwrap(), Reply::Renewed(vec![Renewal::Renewed]));
    assert_eq!(rig.ask(release("k", 1, 0)).await.unwrap(), Reply::Released { receivers: Some(0) });
    assert_eq!(probe.ask("DBSIZE"), "0");
    rig.lane.close();
}

// The lane.

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn operations_are_written_in_the_order_of_the_queue() {
    let server = Server::start(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "20000"]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    let lane = rig.lane.clone();
    // From a plain thread, at once and in bursts.
    std::thread::spawn(move || {
        for n in 0..2_000u32 {
            lane.push(Op::Exists { name: name(&format!("n{n}")) }, n);
            if n % 300 == 299 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for _ in 0..2_000 {
        assert!(rig.next().await.1.result.is_ok());
    }
    let log = probe.ask("SLOWLOG GET 20000");
    let mut seen: Vec<u32> =
        log.split(' ').filter_map(|word| word.strip_prefix('n')).filter_map(|n| n.parse().ok()).collect();
    seen.reverse();
    assert_eq!(seen, (0..2_000).collect::<Vec<_>>());
    assert!(!rig.lane.has_pending());
    rig.lane.close();
    rig.lane.closed().await;
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_was_executed_once() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let proxy = Proxy::start(server.addr());
    let mut rig = Rig::connect(proxy.port).await;
    rig.ask(acquire("warm", 1, 1, 1_000)).await.unwrap();
    let before = probe.calls("evalsha");
    let epoch = rig.lane.epoch();
    proxy.mode.store(CUT_REPLY, Ordering::SeqCst);
    rig.lane.push(acquire("k", 2, 1, 60_000), 7);
    let (tag, answer) = rig.next().await;
    assert_eq!(tag, 7);
    assert!(matches!(answer.result, Err(Failure::Unknown(Trouble::Connection(_)))), "{answer:?}");
    assert_eq!(answer.first_epoch, epoch);
    rig.reconnected().await;
    assert_eq!(rig.lane.epoch(), epoch + 1);
    assert_eq!(rig.ask(Op::HoldCount { name: name("k"), thread: ThreadId(2) }).await.unwrap(), Reply::HoldCount(1));
    assert_eq!(probe.calls("evalsha"), before + 1);
    rig.lane.close();
}

#[tokio::test]
async fn what_was_queued_while_the_server_was_away_is_not_executed_after_its_time() {
    let mut server = Server::start(&[]);
    let port = server.port;
    let mut rig = Rig::connect_with(port, Duration::from_millis(300), 3).await;
    rig.ask(acquire("warm", 1, 1, 1_000)).await.unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for n in 0..5 {
        rig.lane.push(acquire(&format!("k{n}"), 10 + u64::from(n), 1, 60_000), n);
    }
    let taken_back = rig.lane.push(acquire("back", 20, 1, 60_000), 99);
    assert_eq!(rig.lane.take_back(taken_back), Some(99));
    for n in 0..5 {
        let (tag, answer) = rig.next().await;
        assert_eq!(tag, n);
        assert!(matches!(answer.result, Err(Failure::NotSent(Trouble::Connection(_)))), "{answer:?}");
    }
    server = Server::start_on(port, &[]);
    rig.reconnected().await;
    assert_eq!(rig.ask(acquire("now", 30, 1, 60_000)).await.unwrap(), Reply::Acquired);
    assert_eq!(server.probe().ask("KEYS *"), "now");
    rig.lane.close();
}

#[tokio::test]
async fn what_is_queued_while_the_server_is_away_is_executed_when_it_is_back_in_time() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr());
    let mut rig = Rig::connect(proxy.port).await;
    rig.ask(acquire("warm", 1, 1, 1_000)).await.unwrap();
    proxy.mode.store(REFUSE, Ordering::SeqCst);
    server.probe().ask("CLIENT KILL TYPE normal");
    tokio::time::sleep(Duration::from_millis(50)).await;
    rig.lane.push(acquire("k", 2, 1, 60_000), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(rig.lane.oldest_queued_age().is_some_and(|age| age > Duration::from_millis(150)));
    assert!(!rig.lane.is_stalled(Duration::from_millis(100)));
    proxy.mode.store(PASS, Ordering::SeqCst);
    assert_eq!(rig.next().await.1.result.unwrap(), Reply::Acquired);
    rig.lane.close();
}

#[tokio::test]
async fn a_server_that_forgets_its_scripts_is_told_again() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    for thread in 1..4 {
        probe.ask("SCRIPT FLUSH");
        assert_eq!(rig.ask(acquire("k", thread, 1, 60_000)).await.unwrap(), Reply::Acquired);
        assert_eq!(rig.ask(release("k", thread, 0)).await.unwrap(), Reply::Released { receivers: Some(0) });
    }
    rig.lane.close();
}

#[tokio::test]
async fn scripts_are_loaded_before_the_first_operation() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(acquire("k", 1, 1, 1_000)).await.unwrap();
    assert_eq!(probe.calls("eval"), 0);
    for script in crate::script::ALL {
        assert_eq!(probe.ask(&format!("SCRIPT EXISTS {}", script.sha())), "1", "{}", script.name);
    }
    // The label, as a name that the server takes.
    assert!(probe.ask("CLIENT LIST").contains("name=a-label"));
    rig.lane.close();
}

#[tokio::test]
async fn the_connection_knows_its_id_and_its_number() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(Op::Exists { name: name("k") }).await.unwrap();
    let (epoch, id) = (rig.lane.epoch(), rig.lane.connection_id(rig.lane.epoch()).unwrap());
    probe.ask(&format!("CLIENT KILL ID {id}"));
    rig.reconnected().await;
    rig.ask(Op::Exists { name: name("k") }).await.unwrap();
    assert_eq!(rig.lane.epoch(), epoch + 1);
    let new = rig.lane.connection_id(epoch + 1).unwrap();
    assert!(new > id);
    assert_eq!(rig.lane.connection_id(epoch), Some(id));
    rig.lane.close();
}

#[tokio::test]
async fn a_silent_server_is_a_timeout_and_then_a_new_connection() {
    let server = Server::start(&[]);
    let mut rig = Rig::connect_with(server.port, Duration::from_millis(200), 2).await;
    rig.ask(Op::Exists { name: name("k") }).await.unwrap();
    let epoch = rig.lane.epoch();
    server.signal("-STOP");
    for _ in 0..2 {
        let result = rig.ask(Op::Exists { name: name("k") }).await;
        assert!(matches!(result, Err(Failure::Unknown(Trouble::Timeout))), "{result:?}");
    }
    server.signal("-CONT");
    rig.reconnected().await;
    assert!(rig.lane.epoch() > epoch);
    assert!(rig.ask(Op::Exists { name: name("k") }).await.is_ok());
    rig.lane.close();
}

#[tokio::test]
async fn closing_refuses_what_comes_and_hangs_up() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(Op::Exists { name: name("k") }).await.unwrap();
    rig.lane.push(Op::Exists { name: name("k") }, 1);
    rig.lane.close();
    rig.lane.push(Op::Exists { name: name("k") }, 2);
    let mut tags = vec![rig.next().await.0, rig.next().await.0];
    tags.sort();
    assert_eq!(tags, [1, 2]);
    rig.lane.closed().await;
    assert!(matches!(rig.ask(Op::Exists { name: name("k") }).await, Err(Failure::NotSent(Trouble::Closed))));
    eventually("hung up", || probe.ask("CLIENT LIST").lines().count() == 1).await;
}

#[test]
fn the_end_of_its_runtime_is_survived() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.addr());
    let other = tokio::runtime::Runtime::new().unwrap();
    let gone = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut back = other.block_on(Rig::connect(server.port));
    let mut rig = gone.block_on(async {
        let mut rig = Rig::connect(proxy.port).await;
        rig.ask(Op::Exists { name: name("k") }).await.unwrap();
        rig
    });
    rig.lane.set_fallback(back.lane.clone());
    // Nobody drives it: it can be seen, what is queued can move, and what was sent can be given up.
    let first = rig.lane.push(acquire("a", 1, 1, 60_000), 1);
    std::thread::sleep(Duration::from_millis(60));
    assert!(rig.lane.is_stalled(Duration::from_millis(50)));
    rig.lane.move_queued_to(&back.lane);
    let (tag, answer) = other.block_on(back.next());
    assert_eq!((tag, answer.result.unwrap()), (1, Reply::Acquired));
    assert_eq!(rig.lane.take_back(first), None);
    // The runtime ends: what is queued goes to the other lane, in order; so does what comes.
    for n in 2..10 {
        rig.lane.push(Op::Exists { name: name("a") }, n);
    }
    drop(gone);
    assert!(rig.lane.is_dead());
    rig.lane.push(Op::Exists { name: name("a") }, 10);
    for n in 2..11 {
        let (tag, answer) = other.block_on(back.next());
        assert_eq!((tag, answer.result.unwrap()), (n, Reply::Exists(true)));
    }
    other.block_on(rig.lane.closed());
    assert!(rig.answers.try_recv().is_err());
    back.lane.close();
    other.block_on(back.lane.closed());
}

#[test]
fn what_was_sent_on_a_runtime_that_ends_is_unknown() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rig = runtime.block_on(async {
        let mut rig = Rig::connect(server.port).await;
        rig.ask(Op::Exists { name: name("k") }).await.unwrap();
        server.signal("-STOP");
        rig.lane.push(Op::Exists { name: name("k") }, 1);
        rig.lane.push(Op::Exists { name: name("k") }, 2);
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig
    });
    rig.lane.overdue(Duration::from_secs(60));
    assert!(rig.answers.try_recv().is_err());
    rig.lane.overdue(Duration::from_millis(20));
    for tag in 1..3 {
        let (told, answer) = rig.answers.try_recv().unwrap();
        assert_eq!(told, tag);
        assert!(matches!(answer.result, Err(Failure::Unknown(Trouble::Timeout))));
    }
    server.signal("-CONT");
    // The real answers come and are dropped; what follows is told.
    let result = runtime.block_on(async {
        rig.lane.push(Op::Exists { name: name("k") }, 3);
        rig.next().await
    });
    assert_eq!((result.0, result.1.result.unwrap()), (3, Reply::Exists(false)));
    server.signal("-STOP");
    runtime.block_on(async {
        rig.lane.push(Op::Exists { name: name("k") }, 4);
        tokio::time::sleep(Duration::from_millis(50)).await;
    });
    drop(runtime);
    let (tag, answer) = rig.answers.try_recv().unwrap();
    assert_eq!(tag, 4);
    assert!(matches!(answer.result, Err(Failure::Unknown(Trouble::Connection(_)))), "{answer:?}");
    rig.lane.push(Op::Exists { name: name("k") }, 5);
    let (tag, answer) = rig.answers.try_recv().unwrap();
    assert_eq!(tag, 5);
    assert!(matches!(answer.result, Err(Failure::NotSent(Trouble::Connection(_)))));
}

// The subscriber.

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Message(String),
    Confirmed(String),
    Resubscribed,
    Refused(String, RefusalKind),
}

#[derive(Default)]
struct Ears(Mutex<Vec<Told>>);

impl Heard for Ears {
    fn message(&self, channel: &str) {
        self.0.lock().push(Told::Message(channel.into()));
    }

    fn confirmed(&self, names: &[Arc<LockName>]) {
        self.0.lock().extend(names.iter().map(|name| Told::Confirmed(name.key().into())));
    }

    fn resubscribed(&self) {
        self.0.lock().push(Told::Resubscribed);
    }

    fn refused(&self, names: &[Arc<LockName>], reason: &Refusal) {
        self.0.lock().extend(names.iter().map(|name| Told::Refused(name.key().into(), reason.kind)));
    }
}

impl Ears {
    async fn hears(&self, what: Told) {
        eventually(&format!("{what:?}"), || self.0.lock().contains(&what)).await;
    }

    fn count(&self, what: &Told) -> usize {
        self.0.lock().iter().filter(|told| *told == what).count()
    }
}

fn channel(key: &str) -> String {
    name(key).channel().to_owned()
}

#[tokio::test]
async fn what_is_confirmed_is_heard() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let ears = Arc::new(Ears::default());
    let subscriber =
        Subscriber::connect(endpoint(&format!("redis://127.0.0.1:{}", server.port)), ears.clone()).await.unwrap();
    for n in 0..50 {
        let key = format!("k{n}");
        subscriber.want(name(&key));
        ears.hears(Told::Confirmed(key.clone())).await;
        // No pause: the acknowledgement is one.
        assert_eq!(probe.ask(&format!("PUBLISH {} 0", channel(&key))), "1");
    }
    for n in 0..50 {
        ears.hears(Told::Message(channel(&format!("k{n}")))).await;
    }
    // Wanted again while it is subscribed: told again.
    subscriber.want(name("k1"));
    eventually("told again", || ears.count(&Told::Confirmed("k1".into())) == 2).await;
    for n in 0..50 {
        subscriber.drop_want(&name(&format!("k{n}")));
    }
    eventually("left", || probe.ask("PUBSUB CHANNELS").is_empty()).await;
    subscriber.close().await;
    eventually("hung up", || probe.ask("CLIENT LIST").lines().count() == 1).await;
    assert_eq!(ears.count(&Told::Resubscribed), 0);
}

#[tokio::test]
async fn an_acknowledgement_is_not_told_before_it_came() {
    let server = Server::start(&[]);
    let ears = Arc::new(Ears::default());
    let subscriber =
        Subscriber::connect(endpoint(&format!("redis://127.0.0.1:{}", server.port)), ears.clone()).await.unwrap();
    subscriber.want(name("first"));
    ears.hears(Told::Confirmed("first".into())).await;
    server.signal("-STOP");
    subscriber.want(name("second"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(ears.count(&Told::Confirmed("second".into())), 0);
    server.signal("-CONT");
    ears.hears(Told::Confirmed("second".into())).await;
    subscriber.close().await;
}

#[tokio::test]
async fn a_forbidden_channel_does_not_poison_the_others() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    probe.ask("ACL SETUSER u on >pw ~* resetchannels &redisson_lock__channel:{ok* +@all");
    let ears = Arc::new(Ears::default());
    let subscriber =
        Subscriber::connect(endpoint(&format!("redis://u:pw@127.0.0.1:{}", server.port)), ears.clone()).await.unwrap();
    for round in 0..5 {
        let keys = [format!("ok{round}a"), format!("bad{round}"), format!("ok{round}b")];
        for key in &keys {
            subscriber.want(name(key));
        }
        ears.hears(Told::Refused(keys[1].clone(), RefusalKind::Permission)).await;
        for key in [&keys[0], &keys[2]] {
            ears.hears(Told::Confirmed(key.clone())).await;
            assert_eq!(probe.ask(&format!("PUBLISH {} 0", channel(key))), "1");
            ears.hears(Told::Message(channel(key))).await;
        }
        assert_eq!(ears.count(&Told::Confirmed(keys[1].clone())), 0);
    }
    assert_eq!(ears.count(&Told::Resubscribed), 0, "the connection was kept");
    subscriber.close().await;
}

#[tokio::test]
async fn a_lost_connection_is_subscribed_again_and_told() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let ears = Arc::new(Ears::default());
    let subscriber =
        Subscriber::connect(endpoint(&format!("redis://127.0.0.1:{}", server.port)), ears.clone()).await.unwrap();
    let keys: Vec<String> = (0..700).map(|n| format!("k{n}")).collect();
    for key in &keys {
        subscriber.want(name(key));
    }
    ears.hears(Told::Confirmed("k699".into())).await;
    for round in 1..4 {
        probe.ask("CLIENT KILL TYPE pubsub");
        eventually("told", || ears.count(&Told::Resubscribed) == round).await;
        assert_eq!(probe.ask("PUBSUB CHANNELS").split(' ').count(), 700);
        assert_eq!(probe.ask(&format!("PUBLISH {} 0", channel("k7"))), "1");
        eventually("heard", || ears.count(&Told::Message(channel("k7"))) == round).await;
    }
    subscriber.close().await;
}

#[tokio::test]
async fn a_silent_connection_is_noticed() {
    let server = Server::start(&[]);
    let ears = Arc::new(Ears::default());
    let subscriber =
        Subscriber::connect(endpoint(&format!("redis://127.0.0.1:{}", server.port)), ears.clone()).await.unwrap();
    subscriber.want(name("k"));
    ears.hears(Told::Confirmed("k".into())).await;
    server.signal("-STOP");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    server.signal("-CONT");
    ears.hears(Told::Resubscribed).await;
    let mut probe = server.probe();
    eventually("subscribed once", || probe.ask(&format!("PUBSUB NUMSUB {}", channel("k"))).ends_with(" 1")).await;
    subscriber.close().await;
}

// Replies that make no sense.

#[test]
fn hostile_replies_are_errors() {
    let blob = |s: &'static str| Frame::BlobString { data: s.into(), attributes: None };
    let status = |s: &'static str| Frame::SimpleString { data: s.into(), attributes: None };
    let number = |data| Frame::Number { data, attributes: None };
    let array = |data| Frame::Array { data, attributes: None };
    let frames = || {
        vec![
            Frame::Null,
            number(-3),
            number(i64::MIN),
            number(i64::MAX),
            blob(""),
            blob("x"),
            blob("99999999999999999999"),
            Frame::BlobString { data: (&[0xff, 0xfe][..]).into(), attributes: None },
            status("OK"),
            status("gone"),
            array(vec![]),
            array(vec![number(7)]),
            array(vec![number(1), number(1), number(1)]),
            array(vec![number(-1), array(vec![blob("odd")])]),
            array(vec![blob("x"), array(vec![])]),
            array(vec![number(-5), array(vec![])]),
            array(vec![number(1), array(vec![number(1), array(vec![])])]),
            Frame::Boolean { data: true, attributes: None },
            Frame::Double { data: f64::NAN, attributes: None },
            Frame::Push { data: vec![], attributes: None },
            Frame::ChunkedString("x".into()),
        ]
    };
    let ops = [
        acquire("k", 1, 1, 1),
        release("k", 1, 0),
        renew(&[("k", 1), ("l", 2)], 1),
        Op::ForceRelease { name: name("k") },
        Op::Exists { name: name("k") },
        Op::TimeToLive { name: name("k") },
        Op::HoldCount { name: name("k"), thread: ThreadId(1) },
        Op::Inspect { name: name("k") },
        Op::KillConnection { id: 1 },
    ];
    for op in &ops {
        for frame in frames() {
            match codec::reply(op, frame) {
                Ok(_) | Err(Failure::Unknown(Trouble::Connection(_))) => {}
                other => panic!("{op:?}: {other:?}"),
            }
        }
    }
    let unknown = |op: &Op, frame| assert!(matches!(codec::reply(op, frame), Err(Failure::Unknown(_))), "{op:?}");
    unknown(&ops[0], status("gone"));
    unknown(&ops[0], blob("GONE"));
    unknown(&ops[1], status("OK"));
    unknown(&ops[2], array(vec![number(1)]));
    unknown(&ops[2], array(vec![number(1), number(2)]));
    unknown(&ops[6], blob("x"));
    unknown(&ops[7], array(vec![number(-1), array(vec![blob("odd")])]));
    // A field called KEPT is a holder, not a status.
    assert_eq!(codec::reply(&ops[1], blob("KEPT")).unwrap(), Reply::NotHolder { by: Some("KEPT".into()) });
}

#[test]
fn error_texts_are_told_apart() {
    use RefusalKind::*;
    let table = [
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: ab, on @user_script:1.", WrongType),
        (
            "ERR Error running script (call to f_ab): @user_script:3: WRONGTYPE Operation against a key holding the wrong kind of value",
            WrongType,
        ),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Permission),
        (
            "ERR The user executing the script can't run this command or subcommand script: ab, on @user_script:9.",
            Permission,
        ),
        (
            "ERR Error running script (call to f_ab): @user_script:3: The user executing the script can't run this command or subcommand",
            Permission,
        ),
        ("NOAUTH Authentication required.", Authentication),
        ("OOM command not allowed when used memory > 'maxmemory'. script: ab", OutOfMemory),
        (
            "ERR Error running script (call to f_ab): @user_script:3: -OOM command not allowed when used memory > 'maxmemory'.",
            OutOfMemory,
        ),
        ("MISCONF Redis is configured to save RDB snapshots", Misconf),
        ("READONLY You can't write against a read only replica.", ReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", NoReplicas),
        ("LOADING Redis is loading the dataset in memory", Loading),
        ("BUSY Redis is busy running a script.", Busy),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("MASTERDOWN Link with MASTER is down", Unavailable),
        ("ERR unknown command `EVALSHA`, with args beginning with: `READONLY` ", Other),
        ("ERR value is not an integer or out of range", Other),
        ("", Other),
    ];
    for (text, kind) in table {
        assert_eq!(codec::refusal(text).kind, kind, "{text}");
    }
}

// Connecting.

fn refused(url: &str) -> ConnectError {
    match connect::config(&endpoint(url)) {
        Ok(_) => panic!("taken: {url}"),
        Err(error) => error,
    }
}

#[test]
fn urls_are_taken_or_refused_without_telling_the_password() {
    use ConnectErrorKind::*;
    for (url, kind) in [
        ("", BadUrl),
        ("127.0.0.1:6379", BadUrl),
        ("user:s3cret@host:6379", BadUrl),
        ("http://user:s3cret@host", BadUrl),
        ("redis://", BadUrl),
        ("redis://user:s3cret@", BadUrl),
        ("redis://user:s3cret@host:6379/256", BadUrl),
        ("redis://user:s3cret@host:6379/x", BadUrl),
        ("redis://user:s3cret@host:99999", BadUrl),
        ("redis://user:s3cret@h1:1,h2:2", BadUrl),
        ("redis+unix://user:s3cret@/", BadUrl),
        ("redis-cluster://user:s3cret@host:1", Unsupported),
        ("rediss-sentinel://user:s3cret@host:1", Unsupported),
        #[cfg(not(any(feature = "rustls", feature = "native-tls")))]
        ("rediss://user:s3cret@host", TlsNotBuilt),
        #[cfg(not(any(feature = "rustls", feature = "native-tls")))]
        ("valkeys://user:s3cret@host", TlsNotBuilt),
    ] {
        let error = refused(url);
        assert_eq!(error.kind, kind, "{url}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
    let taken = |url: &str| connect::config(&endpoint(url)).unwrap();
    assert_eq!(taken("redis://h").database, None);
    assert_eq!(taken("redis://h/0").database, None);
    assert_eq!(taken("REDIS://h/255").database, Some(255));
    let with_credentials = taken("valkey://us%40er:p%40ss%3Aw%2Frd%231%3F@[::1]:7000/3");
    assert_eq!(with_credentials.username.as_deref(), Some("us@er"));
    assert_eq!(with_credentials.password.as_deref(), Some("p@ss:w/rd#1?"));
    assert_eq!(with_credentials.database, Some(3));
    let other = Endpoint { database: Some(0), ..endpoint("redis://h/3") };
    assert_eq!(connect::config(&other).unwrap().database, None);
    for url in ["unix:///tmp/r.sock?db=2", "redis+unix://u:p@/tmp/r.sock?db=2", "redis+socket:///tmp/r.sock?db=2"] {
        let config = taken(url);
        assert_eq!(config.database, Some(2), "{url}");
        assert_eq!(config.server.hosts()[0].host.to_string(), "/tmp/r.sock");
    }
}

async fn connecting(endpoint: Endpoint) -> Result<Lane<u32>, ConnectError> {
    let settings = LaneSettings {
        client_id: CLIENT.into(),
        command_timeout: Duration::from_secs(1),
        timeouts_before_reconnect: 3,
    };
    Lane::connect(endpoint, settings, ear().0).await
}

#[tokio::test]
async fn connecting_fails_with_a_reason_in_time() {
    use ConnectErrorKind::*;
    let server = Server::start(&[]);
    let mut probe = server.probe();
    probe.ask("ACL SETUSER nosel on >pw ~* &* +@all -select");
    probe.ask("CONFIG SET requirepass s3cret");
    let at = |credentials: &str, path: &str| endpoint(&format!("redis://{credentials}127.0.0.1:{}{path}", server.port));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        endpoint(&format!("redis://127.0.0.1:{port}"))
    };
    let mut deaf = endpoint(&format!("redis://127.0.0.1:{}", silent.local_addr().unwrap().port()));
    deaf.connect_timeout = Duration::from_millis(400);
    for (endpoint, kind) in [
        (at("", ""), Authentication),
        (at(":wr0ng@", ""), Authentication),
        (at("nosel:pw@", "/3"), Permission),
        (at(":s3cret@", "/99"), BadUrl),
        (nobody, Unreachable),
        (deaf, Timeout),
    ] {
        let url = endpoint.url.clone();
        let started = Instant::now();
        let Err(error) = connecting(endpoint).await else { panic!("connected: {url}") };
        assert_eq!(error.kind, kind, "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{url}: {:?}", started.elapsed());
        let told = format!("{error} {error:?}");
        assert!(!told.contains("s3cret") && !told.contains("wr0ng"), "{told}");
    }
    let lane = connecting(at("nosel:pw@", "/0")).await.unwrap();
    lane.close();
    connecting(at(":s3cret@", "/3")).await.unwrap().close();
    eventually("nothing is left behind", || {
        probe.0 = server.probe().0;
        probe.ask("AUTH s3cret");
        probe.ask("CLIENT LIST").lines().count() == 1
    })
    .await;
}

#[tokio::test]
async fn a_server_that_comes_later_is_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut endpoint = endpoint(&format!("redis://127.0.0.1:{port}"));
    endpoint.wait_for_server = true;
    endpoint.connect_timeout = Duration::from_millis(200);
    let waiting = tokio::spawn(connecting(endpoint));
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!waiting.is_finished());
    let _server = Server::start_on(port, &[]);
    waiting.await.unwrap().unwrap().close();
}

#[tokio::test]
async fn unix_sockets_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sock");
    let _server = Server::start(&["--unixsocket", path.to_str().unwrap()]);
    connecting(endpoint(&format!("redis+unix://{}", path.display()))).await.unwrap().close();
}

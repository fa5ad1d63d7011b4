//! What this room relies on, tried on a real server: fred's behaviour at its edges, and the scripts' effects.
//!
//! | file | what |
//! |---|---|
//! | `server` | a server of one's own, a probe beside fred, a proxy that loses things |
//! | `scripts` | what the scripts do to the keys |
//! | `lane` | order, loss, timeouts, the end of a lane |
//! | `subscriber` | what is heard, and what is told of it |
//! | `codec` | replies that make no sense, texts of errors |
//! | `connect` | URLs, and the reasons why connecting fails |
//!
//! Here is what they share: a lane with an ear, and short ways to write operations.

mod codec;
mod connect;
mod lane;
mod scripts;
mod server;
mod subscriber;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::op::*;
use super::{Endpoint, Lane, LaneSettings};
use crate::lease::Lease;
use crate::names::LockName;

const CLIENT: &str = "9f0c1b1e-0000-4000-8000-000000000001";

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

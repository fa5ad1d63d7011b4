//! A lane: the order of operations, and what becomes of them when connections, servers and runtimes go.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::server::{CUT_REPLY, PASS, Proxy, REFUSE, Server};
use super::*;

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
async fn scripts_are_loaded_again_on_a_new_connection() {
    let server = Server::start(&[]);
    let mut probe = server.probe();
    let mut rig = Rig::connect(server.port).await;
    rig.ask(acquire("k", 1, 1, 60_000)).await.unwrap();
    probe.ask("SCRIPT FLUSH");
    probe.ask("CLIENT KILL TYPE normal");
    rig.reconnected().await;
    assert_eq!(rig.ask(release("k", 1, 0)).await.unwrap(), Reply::Released { receivers: Some(0) });
    assert_eq!(probe.calls("eval"), 0);
    // A server that forbids it from now on is served all the same.
    probe.ask("SCRIPT FLUSH");
    probe.ask("ACL SETUSER default -script -client|setname -client|id");
    probe.ask("CLIENT KILL TYPE normal");
    rig.reconnected().await;
    assert_eq!(rig.ask(acquire("k", 2, 1, 60_000)).await.unwrap(), Reply::Acquired);
    assert_eq!(probe.calls("eval"), 1);
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

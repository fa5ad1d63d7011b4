//! What the scripts do to the keys, and what they do not do when rights or memory are missing.

use std::time::Duration;

use super::server::Server;
use super::*;

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

//! What a caller, an operator or a server can give us that it should not.
#![allow(missing_docs)]

mod common;

use std::error::Error as _;
use std::time::{Duration, Instant};

use common::proxy::Mode;
use common::{Monitor, Probe, Proxy, TestServer, eventually};
use redisson_lock::{
    ConnectError, ConnectErrorKind, Error, HoldEnd, InvalidDuration, InvalidName, LockClient, LockClientBuilder,
    LostReason, Owner, Refused,
};

const MS: Duration = Duration::from_millis(1);
const MAX_LEASE_MS: u64 = (1 << 53) - 1;

async fn connect(url: &str) -> LockClient {
    LockClient::connect(url).await.unwrap()
}

/// What was sent about locks. Scripts may still be loaded in the background when a client is connected.
async fn sent(monitor: &Monitor) -> Vec<String> {
    monitor.sent().await.into_iter().filter(|name| !["SCRIPT", "CLIENT"].contains(&name.as_str())).collect()
}

// Durations.

// T67
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_zero_or_beyond_what_redis_counts_is_refused_before_anything_is_sent() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let monitor = Monitor::start(server.port()).await;
    let too_long = [
        Duration::MAX,
        Duration::from_millis(MAX_LEASE_MS + 1),
        Duration::from_millis(MAX_LEASE_MS) + Duration::from_nanos(1),
        Duration::from_millis(i64::MAX as u64),
    ];
    for lease in [Duration::ZERO].into_iter().chain(too_long) {
        let lock = client.get_lock("k").with_lease(lease);
        let results =
            [lock.lock().await.map(Some), lock.try_lock().await, lock.try_lock_for(Duration::from_secs(1)).await];
        for result in results {
            match result {
                Err(Error::InvalidDuration { lock, what: "lease", value, why }) => {
                    assert_eq!((&*lock, value), ("k", lease));
                    let expected = match lease.is_zero() {
                        true => InvalidDuration::Zero,
                        false => InvalidDuration::TooLong { max_ms: MAX_LEASE_MS },
                    };
                    assert_eq!(why, expected);
                }
                other => panic!("{lease:?}: {other:?}"),
            }
        }
    }
    match client.get_lock("k").with_max_hold(Duration::ZERO).lock().await {
        Err(Error::InvalidDuration { what: "max_hold", why: InvalidDuration::Zero, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(sent(&monitor).await.is_empty(), "{:?}", sent(&monitor).await);
}

// T67
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_lease_works() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let lock = client.get_lock("k").with_lease(Duration::from_millis(MAX_LEASE_MS));
    let guard = lock.lock().await.unwrap();
    assert!(probe.pttl("k").await > MAX_LEASE_MS as i64 - 60_000);
    let nested = lock.with_lease(MS).lock().await.unwrap();
    assert_eq!(probe.count("k").await, 2);
    assert!(lock.remaining_lease().await.unwrap() > Some(Duration::from_millis(MAX_LEASE_MS - 60_000)));
    nested.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!probe.exists("k").await);
    let forever = client.get_lock("k").with_max_hold(Duration::MAX).lock().await.unwrap();
    forever.unlock().await.unwrap();
}

// T67
#[tokio::test(flavor = "multi_thread")]
async fn a_fraction_of_a_millisecond_is_rounded_up_and_never_a_key_without_a_time_to_live() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let probe = server.probe().await;
    let monitor = Monitor::start(server.port()).await;
    let cases = [(Duration::from_nanos(1), "1"), (Duration::from_nanos(400_000_001), "401")];
    for (lease, sent) in cases {
        monitor.clear();
        match client.get_lock("k").with_lease(lease).try_lock().await {
            Ok(Some(guard)) => {
                assert!(probe.pttl("k").await != -1);
                drop(guard);
            }
            Err(Error::ExpiredBeforeUse { .. }) => assert!(lease < MS, "{lease:?}"),
            other => panic!("{lease:?}: {other:?}"),
        }
        let expiries: Vec<_> = monitor.seen().await.into_iter().filter(|s| s.name() == "PEXPIRE").collect();
        assert!(!expiries.is_empty() && expiries.iter().all(|e| e.args[2] == sent), "{lease:?}: {expiries:?}");
        eventually(Duration::from_secs(2), "gone", || async { !probe.exists("k").await }).await;
    }
}

// T67
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_wait_waits() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    for wait in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_millis(u64::MAX)] {
        let guard = a.get_lock("k").lock().await.unwrap();
        let waiter = tokio::spawn({
            let lock = b.get_lock("k");
            async move { lock.try_lock_for(wait).await.unwrap().expect("for ever") }
        });
        eventually(Duration::from_secs(2), "it waits", || async { b.stats().waiting == 1 }).await;
        eventually(Duration::from_secs(2), "subscribed", || async {
            probe.numsub("redisson_lock__channel:{k}").await == 1
        })
        .await;
        tokio::time::sleep(100 * MS).await;
        assert!(!waiter.is_finished());
        guard.unlock().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(2), waiter).await.expect("woken").unwrap();
        next.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shorter_than_the_way_is_an_error_of_its_own_and_leaves_nothing() {
    let server = TestServer::own().await;
    let proxy = Proxy::start(server.port()).await;
    let probe = server.probe().await;
    let client = connect(&proxy.url()).await;
    proxy.set(Mode::Delay(200 * MS));
    let lease = 300 * MS;
    let lock = client.get_lock("k").with_lease(lease);
    let results = [lock.lock().await.map(Some), lock.try_lock().await, lock.try_lock_for(Duration::from_secs(5)).await];
    for result in results {
        match result {
            Err(Error::ExpiredBeforeUse { lock, lease: told, .. }) => assert_eq!((&*lock, told), ("k", lease)),
            other => panic!("{other:?}"),
        }
    }
    proxy.set(Mode::Pass);
    eventually(Duration::from_secs(2), "nothing is left", || async { !probe.exists("k").await }).await;
    lock.try_lock().await.unwrap().expect("a fast way is enough").unlock().await.unwrap();
}

// Names.

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_name_is_refused_by_every_verb_before_anything_is_sent() {
    let server = TestServer::own().await;
    let client = connect(server.url()).await;
    let mapped = LockClient::builder().url(server.url()).name_mapper(|_| String::new()).connect().await.unwrap();
    let prefixed = LockClient::builder().url(server.url()).key_prefix("app:").connect().await.unwrap();
    let monitor = Monitor::start(server.port()).await;
    for lock in [client.get_lock(""), mapped.get_lock("given"), prefixed.get_lock("")] {
        let errors = [
            lock.lock().await.map(drop).unwrap_err(),
            lock.try_lock().await.map(drop).unwrap_err(),
            lock.try_lock_for(Duration::from_secs(1)).await.map(drop).unwrap_err(),
            lock.unlock().await.unwrap_err(),
            lock.force_unlock().await.map(drop).unwrap_err(),
            lock.is_locked().await.map(drop).unwrap_err(),
            lock.is_held().await.map(drop).unwrap_err(),
            lock.is_held_by(Owner::new()).await.map(drop).unwrap_err(),
            lock.hold_count().await.map(drop).unwrap_err(),
            lock.remaining_lease().await.map(drop).unwrap_err(),
            lock.inspect().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(&error, Error::InvalidName { why: InvalidName::Empty, .. }), "{error:?}");
        }
    }
    assert!(sent(&monitor).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn long_names_and_any_utf_8_work() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let long = "n".repeat(64 * 1024);
    let names = [
        long.as_str(),
        " ",
        "\r\n",
        "\0",
        "a b\tc",
        "Zähler:日本語:🔒",
        "\u{202e}rtl",
        "{",
        "}",
        "{}",
        "a{b}c",
        "*?[x]",
        "\"'\\",
        "$1%s{0}",
        "\u{10ffff}",
    ];
    for name in names {
        let shown: String = name.chars().take(20).collect();
        let guard = a.get_lock(name).lock().await.unwrap_or_else(|e| panic!("{shown:?}: {e}"));
        assert_eq!(guard.name(), name);
        assert_eq!(probe.count(name).await, 1, "{shown:?}");
        assert!(b.get_lock(name).try_lock().await.unwrap().is_none(), "{shown:?}");
        // A waiter is woken: the channel is the same for both.
        let waiter = tokio::spawn({
            let lock = b.get_lock(name);
            async move { lock.lock().await.unwrap() }
        });
        eventually(Duration::from_secs(2), "subscribed", || async { !probe.channels().await.is_empty() }).await;
        let start = Instant::now();
        guard.unlock().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(3), waiter).await.expect("woken").unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{shown:?}: {:?}", start.elapsed());
        next.unlock().await.unwrap();
        assert!(!probe.exists(name).await, "{shown:?}");
        eventually(Duration::from_secs(3), "unsubscribed", || async { probe.channels().await.is_empty() }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_whose_channel_leaves_the_slot_are_refused_where_that_matters() {
    let server = TestServer::own().await;
    let safe = LockClient::builder().url(server.url()).cluster_safe_names(true).connect().await.unwrap();
    let plain = connect(server.url()).await;
    let monitor = Monitor::start(server.port()).await;
    let bad = ["foo{bar", "a}b", "{}x", "x{}y"];
    for name in bad {
        let lock = safe.get_lock(name);
        let errors = [
            lock.lock().await.map(drop).unwrap_err(),
            lock.try_lock().await.map(drop).unwrap_err(),
            lock.force_unlock().await.map(drop).unwrap_err(),
            lock.inspect().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(&error, Error::InvalidName { why: InvalidName::ChannelInOtherSlot, .. }), "{error:?}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    assert!(sent(&monitor).await.is_empty());
    for name in bad {
        plain.get_lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
    for name in ["foo", "{a}b", "a{b}c", "{a}{b}"] {
        safe.get_lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
}

// Other data at the key.

// T64
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_told_at_once_and_left_alone() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let makers: [&[&str]; 5] = [
        &["SET", "k", "data"],
        &["SET", "k", "data", "PX", "600000"],
        &["RPUSH", "k", "a", "b"],
        &["ZADD", "k", "1", "a"],
        &["SADD", "k", "a"],
    ];
    for maker in makers {
        probe.cmd(maker).await;
        let (dump, ttl) = (probe.cmd(&["DUMP", "k"]).await, probe.pttl("k").await);
        let lock = client.get_lock("k");
        let start = Instant::now();
        let errors = [
            lock.lock().await.map(drop).unwrap_err(),
            lock.try_lock().await.map(drop).unwrap_err(),
            lock.try_lock_for(Duration::from_secs(30)).await.map(drop).unwrap_err(),
            lock.force_unlock().await.map(drop).unwrap_err(),
            lock.inspect().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(&error, Error::WrongType { lock } if &**lock == "k"), "{maker:?}: {error:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{maker:?}: {:?}", start.elapsed());
        assert_eq!(probe.cmd(&["DUMP", "k"]).await, dump, "{maker:?}");
        assert_eq!(probe.pttl("k").await == -1, ttl == -1, "{maker:?}");
        assert!(probe.channels().await.is_empty());
        probe.del("k").await;
    }
    client.get_lock("k").lock().await.unwrap().unlock().await.unwrap();
}

// T64
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_becomes_another_type_under_its_holder_is_lost_and_left_alone() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = LockClient::builder().url(server.url()).watchdog_timeout(600 * MS).connect().await.unwrap();
    let guard = client.get_lock("k").lock().await.unwrap();
    probe.set("k", "data").await;
    let end = tokio::time::timeout(Duration::from_secs(1), guard.lost()).await.expect("told by the next renewal");
    assert_eq!(end, HoldEnd::Lost(LostReason::WrongType));
    assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));
    assert_eq!(probe.get("k").await.as_deref(), Some("data"));
    assert_eq!(probe.pttl("k").await, -1);
    // The same, seen by the release first.
    let guard = client.get_lock("l").with_lease(Duration::from_secs(60)).lock().await.unwrap();
    probe.set("l", "data").await;
    let end = guard.unlock().await;
    assert!(matches!(end, Err(Error::WrongType { .. } | Error::Lost(_))), "{end:?}");
    assert_eq!(probe.get("l").await.as_deref(), Some("data"));
}

// T68
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_server_lost_its_data_is_told_and_the_next_one_gets_the_lock() {
    let mut server = TestServer::own().await;
    let settings = LockClient::builder().url(server.url()).watchdog_timeout(1_500 * MS);
    let (a, b) = (settings.clone().connect().await.unwrap(), settings.connect().await.unwrap());
    for restart in [false, true] {
        let guard = a.get_lock("k").lock().await.unwrap();
        if restart {
            server.kill9();
            server.restart_empty().await;
        } else {
            server.probe().await.flushall().await;
        }
        let end = tokio::time::timeout(1_500 * MS, guard.lost()).await.expect("told before the lease ends");
        assert_eq!(end, HoldEnd::Lost(LostReason::Gone));
        let probe = server.probe().await;
        assert!(!probe.exists("k").await, "brought back");
        let next = b.get_lock("k").try_lock_for(Duration::from_secs(3)).await.unwrap().expect("free");
        assert!(matches!(guard.extend(Duration::from_secs(60)).await, Err(Error::Lost(_))));
        assert!(matches!(guard.unlock().await, Err(Error::Lost(_))));
        assert!(probe.hgetall("k").await.keys().eq([next_field(&b).await].iter()));
        next.unlock().await.unwrap();
        assert!(!probe.exists("k").await);
    }
}

/// The one holder field of the lock `k`, which has to be this client's.
async fn next_field(client: &LockClient) -> String {
    let info = client.get_lock("k").inspect().await.unwrap();
    let [holder] = info.holders.as_slice() else { panic!("{info:?}") };
    assert!(holder.ours, "{info:?}");
    holder.field.to_string()
}

// URLs and credentials.

async fn refusal(url: &str) -> ConnectError {
    let within = Duration::from_secs(5);
    let connected = tokio::time::timeout(within, LockClient::builder().url(url).connect()).await;
    connected.unwrap_or_else(|_| panic!("{url:?} hangs")).map(drop).expect_err(url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_cannot_be_used_is_refused_without_quoting_it() {
    let bad = [
        "",
        "127.0.0.1:6379",
        "redis:",
        "redis://",
        "http://127.0.0.1:6379",
        "redis://127.0.0.1:notaport",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1:6379/notadatabase",
        "redis://127.0.0.1:6379/256",
        "redis+unix://",
        "redis+unix:///",
        "redis://user:s3cr3t@127.0.0.1:port",
        "http://user:s3cr3t@127.0.0.1",
        "s3cr3t",
    ];
    for url in bad {
        let error = refusal(url).await;
        assert_eq!(error.kind, ConnectErrorKind::BadUrl, "{url:?}: {error}");
        assert_silent(&error, &["s3cr3t"]);
    }
    for url in ["redis-cluster://127.0.0.1:1", "rediss-cluster://h:1", "redis-sentinel://u:s3cr3t@h:1/?service=x"] {
        let error = refusal(url).await;
        assert_eq!(error.kind, ConnectErrorKind::Unsupported, "{url:?}: {error}");
        assert_silent(&error, &["s3cr3t"]);
    }
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_asks_for_tls_is_refused_rather_than_connected_without() {
    let server = TestServer::own().await;
    let monitor = Monitor::start(server.port()).await;
    for scheme in ["rediss", "valkeys"] {
        let error = refusal(&format!("{scheme}://u:s3cr3t@127.0.0.1:{}", server.port())).await;
        assert_eq!(error.kind, ConnectErrorKind::TlsNotBuilt, "{error}");
        assert_silent(&error, &["s3cr3t"]);
    }
    assert!(sent(&monitor).await.is_empty());
}

/// None of `secrets` in anything that the error can print.
fn assert_silent(error: &ConnectError, secrets: &[&str]) {
    let mut shown = format!("{error}\n{error:?}\n{error:#?}");
    let mut source = error.source();
    while let Some(below) = source {
        shown += &format!("\n{below}\n{below:?}");
        source = below.source();
    }
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret:?} in {shown}");
    }
}

const PASSWORD: &str = "p@ss:w/#%é";
const ENCODED: &str = "p%40ss%3Aw%2F%23%25%C3%A9";

/// Connects as `user`, and shows that the connection is that user's.
async fn works(settings: LockClientBuilder, probe: &Probe, user: &str) -> LockClient {
    let client = settings.connect().await.unwrap_or_else(|e| panic!("{user}: {e}"));
    client.get_lock("k").lock().await.unwrap().unlock().await.unwrap();
    let lines = probe.others().await;
    let mark = format!(" user={user} ");
    assert!(lines.len() >= 3 && lines.iter().all(|line| line.contains(&mark)), "{user}: {lines:#?}");
    client
}

// T73
#[tokio::test(flavor = "multi_thread")]
async fn percent_encoded_credentials_connect_and_are_never_shown() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let password = format!(">{PASSWORD}");
    for user in ["app", "us:er@x"] {
        probe.cmd(&["ACL", "SETUSER", user, "on", &password, "~*", "&*", "+@all"]).await;
    }
    let shown_in = |shown: &str| [PASSWORD, ENCODED, "p@ss", "p%40ss"].into_iter().find(|s| shown.contains(s));
    for (user, encoded) in [("app", "app"), ("us:er@x", "us%3Aer%40x")] {
        let url = format!("redis://{encoded}:{ENCODED}@127.0.0.1:{}", server.port());
        let settings = LockClient::builder().url(&url).label("billing");
        assert_eq!(shown_in(&format!("{settings:?} {settings:#?}")), None);
        let client = works(settings, &probe, user).await;
        let guard = client.get_lock("k").lock().await.unwrap();
        let shown = format!("{client:?} {client:#?} {:?} {guard:?}", client.get_lock("k"));
        assert_eq!(shown_in(&shown), None, "{shown}");
        guard.unlock().await.unwrap();
        client.shutdown(Duration::from_secs(2)).await.unwrap();
        eventually(Duration::from_secs(2), "hung up", || async { probe.others().await.is_empty() }).await;
    }
    // The default user, with a password only.
    probe.cmd(&["ACL", "SETUSER", "default", "resetpass", &password]).await;
    works(LockClient::builder().url(format!("redis://:{ENCODED}@127.0.0.1:{}", server.port())), &probe, "default")
        .await;
}

// T73
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_told_at_once_and_never_shown() {
    let server = TestServer::own_with(&["--requirepass", "the-right-one"]).await;
    for (credentials, secrets) in [
        ("", &["the-right-one"][..]),
        (":wr0ng-secret@", &["wr0ng-secret", "the-right-one"]),
        ("nobody:wr0ng-secret@", &["wr0ng-secret"]),
        ("default:wr0ng%2Fsecret@", &["wr0ng/secret", "wr0ng%2Fsecret"]),
    ] {
        let start = Instant::now();
        let error = refusal(&format!("redis://{credentials}127.0.0.1:{}", server.port())).await;
        assert_eq!(error.kind, ConnectErrorKind::Authentication, "{credentials:?}: {error}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert_silent(&error, secrets);
    }
    // Changed under a client that is connected: every reconnection fails, and nothing that is told shows either.
    let events = common::trace::collect();
    let client = connect(&format!("redis://:the-right-one@127.0.0.1:{}", server.port())).await;
    let probe = Probe::at(&format!("redis://:the-right-one@127.0.0.1:{}", server.port())).await;
    probe.cmd(&["CONFIG", "SET", "requirepass", "another-one"]).await;
    for line in probe.others().await {
        probe.client_kill_id(line.split(' ').find_map(|part| part.strip_prefix("id=")).unwrap()).await;
    }
    let error = client.get_lock("k").try_lock_for(1_000 * MS).await.map(drop).unwrap_err();
    let mut shown = format!("{error} {error:?} {client:?} {:?}", events.all());
    let mut source = error.source();
    while let Some(below) = source {
        shown += &format!("{below} {below:?}");
        source = below.source();
    }
    assert!(!events.all().is_empty());
    for secret in ["the-right-one", "another-one"] {
        assert!(!shown.contains(secret), "{secret:?} in {shown}");
    }
    probe.cmd(&["CONFIG", "SET", "requirepass", "the-right-one"]).await;
    let guard = client.get_lock("k").try_lock_for(Duration::from_secs(10)).await.unwrap().expect("it is let in again");
    guard.unlock().await.unwrap();
}

// Servers.

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_fails_the_connect_within_its_timeout() {
    let mut server = TestServer::own().await;
    let settings = LockClient::builder().url(server.url()).connect_timeout(1_000 * MS);
    server.freeze();
    let start = Instant::now();
    let error = settings.clone().connect().await.unwrap_err();
    assert_eq!(error.kind, ConnectErrorKind::Timeout, "{error}");
    assert!(start.elapsed() < 1_700 * MS, "frozen: {:?}", start.elapsed());
    server.kill9();
    let start = Instant::now();
    let error = settings.connect().await.unwrap_err();
    assert!(matches!(error.kind, ConnectErrorKind::Unreachable | ConnectErrorKind::Timeout), "{error:?}");
    assert!(start.elapsed() < 1_700 * MS, "down: {:?}", start.elapsed());
    // The name of a host that is not there.
    let nowhere = LockClient::builder().url("redis://no-such-host.invalid:6379").connect_timeout(1_000 * MS);
    let error = tokio::time::timeout(Duration::from_secs(8), nowhere.connect()).await.expect("it ends").unwrap_err();
    assert!(matches!(error.kind, ConnectErrorKind::Unreachable | ConnectErrorKind::Timeout), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_its_server_connects_when_it_comes() {
    let mut server = TestServer::own().await;
    server.kill9();
    let settings = LockClient::builder().url(server.url()).connect_timeout(300 * MS).wait_for_server(true);
    let connecting = tokio::spawn(settings.connect());
    tokio::time::sleep(1_000 * MS).await;
    assert!(!connecting.is_finished(), "gave up");
    server.restart_empty().await;
    let client = tokio::time::timeout(Duration::from_secs(5), connecting).await.expect("soon").unwrap().unwrap();
    client.get_lock("k").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_out_of_bounds_are_refused_by_name_before_anything_is_sent() {
    let server = TestServer::own().await;
    let monitor = Monitor::start(server.port()).await;
    let builder = || LockClient::builder().url(server.url());
    let below = Duration::from_micros(999);
    let cases = [
        ("watchdog_timeout", builder().watchdog_timeout(Duration::ZERO)),
        ("watchdog_timeout", builder().watchdog_timeout(199 * MS)),
        ("watchdog_timeout", builder().watchdog_timeout(Duration::MAX)),
        ("watchdog_batch", builder().watchdog_batch_size(0)),
        ("watchdog_batch", builder().watchdog_batch_size(7_001)),
        ("recheck_interval", builder().recheck_interval(below)),
        ("connect_timeout", builder().connect_timeout(below)),
        ("command_timeout", builder().command_timeout(below)),
        ("undelivered_grant", builder().undelivered_grant(below)),
    ];
    for (what, settings) in cases {
        let error = settings.connect().await.map(drop).expect_err(what);
        assert_eq!(error.kind, ConnectErrorKind::Config, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!(sent(&monitor).await.is_empty());
    builder().watchdog_timeout(200 * MS).watchdog_batch_size(7_000).connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_channel_rights_unlock_is_ok_and_waiters_poll() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    probe.cmd(&["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels"]).await;
    let url = server.url().replace("redis://", "redis://mute:pw@");
    let (a, b) = (connect(&url).await, connect(&url).await);
    let guard = a.get_lock("k").lock().await.unwrap();
    let waiter = tokio::spawn({
        let lock = b.get_lock("k");
        async move { lock.lock().await.unwrap() }
    });
    eventually(Duration::from_secs(2), "it waits", || async { b.stats().contended == 1 }).await;
    let start = Instant::now();
    guard.unlock().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(3), waiter).await.expect("it polls").unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(a.get_lock("k").force_unlock().await.unwrap());
    drop(next);
    assert!(!probe.exists("k").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_told_at_once_with_its_name() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    probe.cmd(&["ACL", "SETUSER", "app", "on", ">pw", "~app:*", "&*", "+@all"]).await;
    let client = connect(&server.url().replace("redis://", "redis://app:pw@")).await;
    let start = Instant::now();
    match client.get_lock("other").lock().await {
        Err(Error::Permission { lock, message }) => {
            assert_eq!(&*lock, "other");
            assert!(message.contains("NOPERM") || message.contains("permission"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    client.get_lock("app:mine").lock().await.unwrap().unlock().await.unwrap();
    // A lock without a time to live must not come into being.
    probe.cmd(&["ACL", "SETUSER", "app", "-pexpire"]).await;
    assert!(matches!(client.get_lock("app:mine").try_lock().await, Err(Error::Permission { .. })));
    assert!(!probe.exists("app:mine").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_memory_refuses_acquires_and_still_takes_releases() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    probe.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let start = Instant::now();
    let results = [client.get_lock("new").try_lock().await.map(drop), client.get_lock("new").lock().await.map(drop)];
    for result in results {
        assert!(matches!(&result, Err(Error::Refused { kind: Refused::OutOfMemory, .. })), "{result:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    guard.unlock().await.unwrap();
    assert!(!probe.exists("k").await && !probe.exists("new").await);
    probe.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    client.get_lock("new").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_refuses_the_unlock_and_gets_it_again_later() {
    let server = TestServer::own().await;
    let probe = server.probe().await;
    let client = connect(server.url()).await;
    let guard = client.get_lock("k").lock().await.unwrap();
    // MISCONF: a background save that fails, with a save rule.
    for (setting, value) in [("save", "3600 1"), ("dbfilename", "no-such-directory-dump.rdb")] {
        assert_eq!(probe.cmd(&["CONFIG", "SET", setting, value]).await.text().as_deref(), Some("OK"), "{setting}");
    }
    std::fs::create_dir(server.directory().join("no-such-directory-dump.rdb")).unwrap();
    probe.set("dirty", "1").await;
    eventually(Duration::from_secs(5), "the save has failed", || async {
        probe.cmd(&["BGSAVE"]).await;
        let info = probe.cmd(&["INFO", "persistence"]).await.text().unwrap();
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    match client.get_lock("new").try_lock().await {
        Err(Error::Refused { kind: Refused::Misconf, .. }) => {}
        other => panic!("{other:?}"),
    }
    match guard.unlock().await {
        Err(Error::Refused { kind: Refused::Misconf, lock, .. }) => assert_eq!(&*lock, "k"),
        other => panic!("{other:?}"),
    }
    assert_eq!(probe.count("k").await, 1);
    probe.cmd(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).await;
    // The library has gone on trying; the lease is 30 s.
    eventually(Duration::from_secs(4), "released after all", || async { !probe.exists("k").await }).await;
}

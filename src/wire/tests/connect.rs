//! URLs, and the reasons why connecting fails.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::server::Server;
use super::*;
use crate::error::{ConnectError, ConnectErrorKind};
use crate::wire::connect;

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

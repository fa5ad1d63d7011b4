//! The subscriber: what is heard, and what is told of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::server::Server;
use super::*;
use crate::wire::{Heard, Subscriber};

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

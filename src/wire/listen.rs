//! The subscriber's task: makes what is subscribed what is wanted, and keeps the connection.
//!
//! It carries nothing but SUBSCRIBE, UNSUBSCRIBE and PING, one after the other. fred does not wait for the acknowledgement
//! of a SUBSCRIBE, and gives its error to the command behind it; so every SUBSCRIBE is followed by a PING that carries a
//! number of its own. The PING's answer is the acknowledgement; an error in its place is the SUBSCRIBE's, and then the
//! PING's own answer is still on the way and is waited out.
//!
//! It knows names and their channels. It may not know what a message means: messages do not come by here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, PubsubInterface};
use fred::types::{Resp3Frame as Frame, Value};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::codec::{self, Command};
use super::connect::{Dialled, Link, Router};
use super::op::Refusal;
use super::subscriber::{Heard, Shared};
use crate::names::LockName;

/// How often the connection is asked whether it lives: while something is wanted, and else.
const LIVENESS: Duration = Duration::from_secs(1);
const LIVENESS_IDLE: Duration = Duration::from_secs(10);

/// Before the next try after a failure.
const PAUSE: Duration = Duration::from_millis(50);

/// How many channels one SUBSCRIBE names.
const BATCH: usize = 500;

/// How long hanging up may take.
const QUIT: Duration = Duration::from_millis(500);

/// What a PING brought back.
enum Echo {
    /// Everything before it was taken.
    Acknowledged,
    /// The SUBSCRIBE before it was refused.
    Refused(Refusal),
    /// Nothing that can be relied upon.
    Broken,
}

/// The subscriber's task.
pub(super) struct Task {
    shared: Arc<Shared>,
    client: SubscriberClient,
    link: Link,
    router: Option<Router>,
    heard: Arc<dyn Heard>,
    name: Option<String>,
    /// What the server has acknowledged on this connection.
    subscribed: HashSet<Arc<LockName>>,
    /// Messages may have been missed since the last time that everything was subscribed.
    gap: bool,
    pings: u64,
    /// When the last one was sent.
    pinged: Instant,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.closing.send_replace(true);
        self.shared.ended.send_replace(true);
    }
}

impl Task {
    /// `name` is what the connection is called at the server.
    pub(super) fn new(
        shared: Arc<Shared>,
        dialled: Dialled<SubscriberClient>,
        heard: Arc<dyn Heard>,
        name: Option<String>,
    ) -> Self {
        let Dialled { client, link, router } = dialled;
        Task {
            shared,
            client,
            link,
            router: Some(router),
            heard,
            name,
            subscribed: HashSet::new(),
            gap: false,
            pings: 0,
            pinged: Instant::now(),
        }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let mut closing = shared.closing.subscribe();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => {}
            () = self.listen() => {}
        }
        let _ = tokio::time::timeout(QUIT, self.client.quit()).await;
    }

    async fn listen(&mut self) {
        self.greet().await;
        loop {
            let mut watch = Link::watch(&self.client);
            self.look().await;
            if !self.link.up {
                self.wait_until_up(watch).await;
                continue;
            }
            if !self.reconcile().await {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            if std::mem::take(&mut self.gap) {
                self.heard.resubscribed();
            }
            let liveness = if self.subscribed.is_empty() { LIVENESS_IDLE } else { LIVENESS };
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = &mut watch => {}
                () = tokio::time::sleep_until(self.pinged + liveness) => {
                    if !matches!(self.ping().await, Echo::Acknowledged) && self.link.up {
                        self.renew().await;
                    }
                }
            }
        }
    }

    /// Takes in what happened to the connection.
    async fn look(&mut self) {
        if self.look_without_greeting() {
            self.greet().await;
        }
    }

    async fn greet(&mut self) {
        if let Some(name) = self.name.clone() {
            let (command, args) = Command::new("CLIENT", vec![Value::from("SETNAME"), Value::from(name)]).into_parts();
            if let Err(error) = self.client.custom_raw(command, args).await {
                tracing::debug!(%error, "CLIENT SETNAME failed");
            }
        }
    }

    /// Waits for news of the connection; makes sure that somebody works on it.
    async fn wait_until_up(&mut self, watch: BoxFuture<'static, ()>) {
        let Some(router) = &mut self.router else {
            tokio::time::sleep(PAUSE * 4).await;
            self.router = Some(Router::start(&self.client));
            return;
        };
        tokio::select! {
            () = watch => {}
            error = router.ended() => {
                tracing::warn!(error = error.as_ref().map(tracing::field::display), "the connection's task ended");
                self.router = None;
            }
            () = tokio::time::sleep(LIVENESS_IDLE) => {
                // In case the news of its return got lost.
                if matches!(self.ping().await, Echo::Acknowledged) && !self.link.up {
                    self.link.up = true;
                    self.start_over();
                }
            }
        }
    }

    /// Makes what is subscribed what is wanted. False: not all of it, try again.
    async fn reconcile(&mut self) -> bool {
        loop {
            let (gone, new, asked) = {
                let wanted = self.shared.wanted.lock();
                let gone: Vec<_> = self.subscribed.difference(&wanted.names).take(BATCH).cloned().collect();
                let new: Vec<_> = wanted.names.difference(&self.subscribed).take(BATCH).cloned().collect();
                let asked: Vec<_> = wanted.asked.intersection(&self.subscribed).cloned().collect();
                (gone, new, asked)
            };
            self.confirm(&asked);
            if gone.is_empty() && new.is_empty() {
                return true;
            }
            if !gone.is_empty() {
                for name in &gone {
                    self.subscribed.remove(name);
                }
                if let Err(error) = self.client.unsubscribe(channels(&gone)).await {
                    tracing::debug!(%error, "UNSUBSCRIBE failed");
                    return false;
                }
            }
            if !new.is_empty() && !self.subscribe(&new).await {
                return false;
            }
        }
    }

    /// Subscribes to all of `names`, or finds those that are refused.
    async fn subscribe(&mut self, names: &[Arc<LockName>]) -> bool {
        match self.subscribe_at_once(names).await {
            Echo::Acknowledged => {}
            Echo::Refused(reason) if names.len() == 1 => self.refuse(names, &reason),
            // The server takes all of a SUBSCRIBE or nothing.
            Echo::Refused(_) => {
                for name in names {
                    let one = std::slice::from_ref(name);
                    match self.subscribe_at_once(one).await {
                        Echo::Acknowledged => {}
                        Echo::Refused(reason) => self.refuse(one, &reason),
                        Echo::Broken => return false,
                    }
                }
            }
            Echo::Broken => return false,
        }
        true
    }

    async fn subscribe_at_once(&mut self, names: &[Arc<LockName>]) -> Echo {
        let epoch = self.link.epoch;
        if let Err(error) = self.client.subscribe(channels(names)).await {
            tracing::debug!(%error, "SUBSCRIBE failed");
            return Echo::Broken;
        }
        let echo = self.ping().await;
        match &echo {
            // The PING may have travelled on a newer connection than the SUBSCRIBE.
            Echo::Acknowledged if self.link.epoch == epoch => {
                self.subscribed.extend(names.iter().cloned());
                self.confirm(names);
                Echo::Acknowledged
            }
            Echo::Refused(_) if self.link.epoch == epoch => {
                if self.settle().await {
                    return echo;
                }
                if self.link.up {
                    self.renew().await;
                }
                Echo::Broken
            }
            _ => {
                if self.link.epoch == epoch && self.link.up {
                    self.renew().await;
                }
                Echo::Broken
            }
        }
    }

    /// Tells those who asked.
    fn confirm(&self, names: &[Arc<LockName>]) {
        let confirmed: Vec<_> = {
            let mut wanted = self.shared.wanted.lock();
            names.iter().filter(|name| wanted.asked.remove(*name)).cloned().collect()
        };
        if !confirmed.is_empty() {
            self.heard.confirmed(&confirmed);
        }
    }

    /// A refused name is not wanted any more; whoever wants it again may be luckier.
    fn refuse(&self, names: &[Arc<LockName>], reason: &Refusal) {
        {
            let mut wanted = self.shared.wanted.lock();
            for name in names {
                wanted.asked.remove(name);
                wanted.names.remove(name);
            }
        }
        self.heard.refused(names, reason);
    }

    /// A PING with a number of its own.
    async fn ping(&mut self) -> Echo {
        self.pings += 1;
        self.pinged = Instant::now();
        let number = self.pings.to_string();
        let (command, args) = Command::new("PING", vec![Value::from(number.as_str())]).into_parts();
        let answer = self.client.custom_raw(command, args).await;
        self.look_without_greeting();
        let frame = match answer {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "PING failed");
                return Echo::Broken;
            }
        };
        if let Some(refusal) = codec::error_of(&frame) {
            return Echo::Refused(refusal);
        }
        let echoed = match &frame {
            Frame::Array { data, .. } => data.get(1).and_then(codec::bytes),
            other => codec::bytes(other),
        };
        if echoed == Some(number.as_bytes()) { Echo::Acknowledged } else { Echo::Broken }
    }

    fn look_without_greeting(&mut self) -> bool {
        let new = self.link.look();
        if new {
            self.start_over();
        }
        new
    }

    /// On a new connection nothing is subscribed, and what was said meanwhile was missed.
    fn start_over(&mut self) {
        self.gap = true;
        self.subscribed.clear();
    }

    /// After an error in a PING's place: until the answers are in step again.
    async fn settle(&mut self) -> bool {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if matches!(self.ping().await, Echo::Acknowledged) {
                return true;
            }
        }
        false
    }

    /// Gives the connection up for a new one.
    async fn renew(&mut self) {
        tracing::debug!(connection = self.link.epoch, "no answer: connecting anew");
        self.link.up = false;
        let epoch = self.link.epoch;
        let client = self.client.clone();
        // It ends with the new connection. Whoever waits for that also hears of it by the link.
        tokio::spawn(async move { drop(client.force_reconnection().await) });
        let mut watch = Link::watch(&self.client);
        self.look_without_greeting();
        while self.link.epoch == epoch {
            self.wait_until_up(watch).await;
            watch = Link::watch(&self.client);
            self.look_without_greeting();
        }
    }
}

fn channels(names: &[Arc<LockName>]) -> Vec<String> {
    names.iter().map(|name| name.channel().to_owned()).collect()
}

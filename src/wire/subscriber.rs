//! The connection that listens: the handle, and the way of a message to whom it concerns.
//!
//! This room knows which channels are wanted, and what is to be told. It may not know what is subscribed, or how that comes
//! about: that is `listen`'s.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::SubscriberClient;
use fred::interfaces::EventInterface;
use fred::types::Message;
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};

use super::connect::{self, Endpoint, Tuning};
use super::listen::Task;
use super::op::Refusal;
use crate::error::ConnectError;
use crate::names::LockName;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_millis(500);

/// What the subscriber tells. Called on its tasks; never blocks.
pub(crate) trait Heard: Send + Sync + 'static {
    /// A message came in on this channel.
    fn message(&self, channel: &str);
    /// From here on messages on these names' channels are heard. Once for each [`Subscriber::want`], and not again after a
    /// lost connection.
    fn confirmed(&self, names: &[Arc<LockName>]);
    /// Messages may have been missed on any channel, and are heard again.
    fn resubscribed(&self);
    /// The server does not let us listen to these.
    fn refused(&self, names: &[Arc<LockName>], reason: &Refusal);
}

/// A handle on the subscriber. It does not keep it open: [`close`](Subscriber::close) ends it.
#[derive(Clone)]
pub(crate) struct Subscriber(Arc<Shared>);

/// What the handles and the task have in common.
pub(super) struct Shared {
    pub(super) wanted: Mutex<Wanted>,
    pub(super) changed: Notify,
    pub(super) closing: watch::Sender<bool>,
    pub(super) ended: watch::Sender<bool>,
}

#[derive(Default)]
pub(super) struct Wanted {
    pub(super) names: HashSet<Arc<LockName>>,
    /// Wanted, and not confirmed or refused since.
    pub(super) asked: HashSet<Arc<LockName>>,
}

impl Subscriber {
    /// Connects, and starts the subscriber's tasks on the current runtime. Dropping the future leaves nothing behind.
    pub(crate) async fn connect(endpoint: Endpoint, heard: Arc<dyn Heard>) -> Result<Self, ConnectError> {
        let tuning = Tuning { command_timeout: ANSWER, events: 4096 };
        let dialled = connect::dial::<SubscriberClient>(&endpoint, &tuning).await?;
        let shared = Arc::new(Shared {
            wanted: Mutex::default(),
            changed: Notify::new(),
            closing: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        });
        tokio::spawn(route(dialled.client.message_rx(), heard.clone(), shared.closing.subscribe()));
        let name = endpoint.label.as_deref().map(connect::client_name);
        tokio::spawn(Task::new(shared.clone(), dialled, heard, name).run());
        Ok(Subscriber(shared))
    }

    /// Listen to this name's channel. From any thread; never blocks. Answered by `confirmed` or `refused`.
    pub(crate) fn want(&self, name: Arc<LockName>) {
        {
            let mut wanted = self.0.wanted.lock();
            wanted.asked.insert(name.clone());
            wanted.names.insert(name);
        }
        self.0.changed.notify_one();
    }

    /// Stop listening to it.
    pub(crate) fn drop_want(&self, name: &LockName) {
        {
            let mut wanted = self.0.wanted.lock();
            wanted.asked.remove(name);
            wanted.names.remove(name);
        }
        self.0.changed.notify_one();
    }

    /// Hangs up.
    pub(crate) async fn close(&self) {
        self.0.closing.send_replace(true);
        let mut ended = self.0.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Brings every message to whom it concerns, and does nothing else, so that it keeps up.
async fn route(mut messages: Receiver<Message>, heard: Arc<dyn Heard>, mut closing: watch::Receiver<bool>) {
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        match message {
            Ok(message) => heard.message(&message.channel),
            Err(RecvError::Lagged(missed)) => {
                tracing::debug!(missed, "messages missed");
                heard.resubscribed();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

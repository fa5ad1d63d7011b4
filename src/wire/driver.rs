//! A lane's task: drains the queue into fred, and keeps the connection.
//!
//! One future, polled by hand, so that an operation is in fred's queue as soon as it is taken out of the lane's, and so that
//! no future of an operation is dropped while its client lives. It knows the lane's queue and the link. It may not
//! know how commands are made (that is `call`'s), nor what an operation is for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::call::{self, Call, Done};
use super::connect::{Dialled, Link, Router};
use super::lane::{LaneSettings, OpToken};
use super::op::{Failure, Op, Trouble};
use super::queue::{Shared, Stage};

/// How often an idle connection is asked whether it lives.
const LIVENESS: Duration = Duration::from_secs(10);

/// How long hanging up may take.
const QUIT: Duration = Duration::from_millis(500);

/// How soon a connection task that ended by itself is started again.
const RESTART: Duration = Duration::from_millis(200);

/// How often the lane's task looks for more before it lets others run.
const ROUNDS: usize = 8;

/// A lane's task.
pub(super) struct Driver<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    client: Client,
    link: Link,
    settings: LaneSettings,
    name: Option<String>,
    /// Everything that is waited for. Nothing in it is dropped while the client lives.
    waiting: FuturesUnordered<Call>,
    /// Ended in the first poll; to be worked off.
    ready: Vec<Done>,
    /// Kept between polls for its memory.
    batch: Vec<(OpToken, Op)>,
    /// Timeouts in a row.
    timeouts: u32,
    /// An answer came since the last idle tick.
    heard: bool,
    pinging: bool,
    renewing: bool,
    fast_tick: bool,
    /// Nothing was handed over yet.
    fresh: bool,
    quitting: bool,
    over: bool,
}

impl<T: Send + 'static> Driver<T> {
    /// `name` is what the connection is called at the server.
    pub(super) fn new(
        shared: Arc<Shared<T>>,
        dialled: Dialled<Client>,
        settings: LaneSettings,
        name: Option<String>,
    ) -> Self {
        let Dialled { client, link, router } = dialled;
        let driver = Driver {
            shared,
            client,
            link,
            settings,
            name,
            waiting: FuturesUnordered::new(),
            ready: Vec::new(),
            batch: Vec::new(),
            timeouts: 0,
            heard: true,
            pinging: false,
            renewing: false,
            fast_tick: false,
            fresh: true,
            quitting: false,
            over: false,
        };
        driver.waiting.push(call::router_ended(router));
        driver.waiting.push(call::later(LIVENESS, Done::Tick { idle: true }));
        driver.watch();
        driver
    }

    fn watch(&self) {
        self.waiting.push(call::event(&self.client));
    }

    /// Hands a command over now: it is in fred's queue when this returns.
    fn hand(&mut self, cx: &mut Context<'_>, mut call: Call) {
        match call.as_mut().poll(cx) {
            Poll::Ready(done) => self.ready.push(done),
            Poll::Pending => self.waiting.push(call),
        }
    }

    fn greet(&mut self, cx: &mut Context<'_>) {
        for call in call::greeting(&self.client, self.name.as_deref(), self.link.epoch) {
            self.hand(cx, call);
        }
    }

    /// Takes in what happened to the connection.
    fn look(&mut self, cx: &mut Context<'_>) {
        let was_up = self.link.up;
        if self.link.look() {
            self.shared.epoch.store(self.link.epoch, Ordering::Release);
            self.renewing = false;
            self.timeouts = 0;
            tracing::debug!(connection = self.link.epoch, "connected again");
            self.greet(cx);
            self.shared.listener.connected();
        } else if was_up && !self.link.up {
            tracing::debug!(connection = self.link.epoch, error = ?self.link.error, "connection lost");
        }
    }

    /// Hands everything that is queued to fred, in order.
    fn hand_over(&mut self, cx: &mut Context<'_>) {
        if !self.link.up || self.quitting {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.shared.take_queued(self.link.epoch, &mut batch);
        for (token, op) in batch.drain(..) {
            let call = call::operation(&self.client, &self.settings.client_id, token, op);
            self.hand(cx, call);
        }
        self.batch = batch;
    }

    fn complete(&mut self, cx: &mut Context<'_>, done: Done) {
        match done {
            Done::Op(token, result) => {
                // Whatever connection the answer came on is known by now.
                self.look(cx);
                let Some(flight) = self.shared.state.lock().in_flight.remove(&token.0) else { return };
                match &result {
                    Err(Failure::Unknown(Trouble::Timeout)) if flight.epoch == self.link.epoch => self.timed_out(cx),
                    Ok(_) | Err(Failure::Refused(_)) => self.alive(),
                    Err(_) => {}
                }
                self.shared.tell(flight, result);
            }
            Done::ConnectionId { epoch, id } => {
                self.look(cx);
                if let Some(id) = id
                    && epoch == self.link.epoch
                {
                    self.shared.remember(epoch, id);
                }
            }
            Done::Alive(result) => {
                self.pinging = false;
                match result {
                    Ok(()) => {
                        self.alive();
                        self.link.up = true;
                    }
                    Err(_) if self.link.up => self.renew(cx),
                    Err(_) => {}
                }
            }
            Done::Renewed(result) => {
                self.renewing = false;
                self.look(cx);
                if let Err(error) = result {
                    tracing::debug!(%error, "no new connection yet");
                }
            }
            Done::Event => {
                // Hanging up closes what is watched.
                if !self.quitting {
                    self.watch();
                }
                self.look(cx);
            }
            Done::Tick { idle: true } => {
                if !self.heard && !self.pinging {
                    self.ping(cx);
                }
                self.heard = false;
                self.waiting.push(call::later(LIVENESS, Done::Tick { idle: true }));
            }
            Done::Tick { idle: false } => {
                self.fast_tick = false;
                if !self.link.up {
                    self.expire();
                    // In case the news of the connection's return got lost.
                    if self.client.is_connected() && !self.renewing && !self.pinging {
                        self.ping(cx);
                    }
                }
            }
            Done::RouterEnded(error) => {
                if !self.quitting {
                    tracing::warn!(error = error.as_ref().map(tracing::field::display), "the connection's task ended");
                    self.link.up = false;
                    self.renewing = false;
                    if let Some(error) = error {
                        self.link.error = Some(Arc::new(error));
                    }
                    self.waiting.push(call::later(RESTART, Done::Restart));
                }
            }
            Done::Restart => {
                if !self.quitting {
                    self.waiting.push(call::router_ended(Router::start(&self.client)));
                }
            }
            Done::Quit => self.over = true,
            Done::Nothing => {}
        }
    }

    fn alive(&mut self) {
        self.timeouts = 0;
        self.heard = true;
    }

    fn timed_out(&mut self, cx: &mut Context<'_>) {
        self.timeouts += 1;
        if self.timeouts >= self.settings.timeouts_before_reconnect {
            self.renew(cx);
        }
    }

    fn ping(&mut self, cx: &mut Context<'_>) {
        self.pinging = true;
        self.hand(cx, call::ping(&self.client));
    }

    /// Gives the connection up for a new one.
    fn renew(&mut self, cx: &mut Context<'_>) {
        self.link.up = false;
        if self.renewing || self.quitting {
            return;
        }
        tracing::debug!(connection = self.link.epoch, "no answers: connecting anew");
        self.renewing = true;
        self.timeouts = 0;
        self.hand(cx, call::renew(&self.client));
    }

    /// Refuses what has waited for a connection as long as it may.
    fn expire(&mut self) {
        let trouble = self.link.error.clone().map_or(Trouble::Timeout, Trouble::Connection);
        self.shared.expire(self.settings.command_timeout, &trouble);
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.waker.register(cx.waker());
        if std::mem::take(&mut self.fresh) {
            self.greet(cx);
        }
        for _ in 0..ROUNDS {
            self.shared.awake.store(true, Ordering::Release);
            self.shared.woken.store(0, Ordering::Release);
            self.look(cx);
            self.hand_over(cx);
            loop {
                while let Some(done) = self.ready.pop() {
                    self.complete(cx, done);
                }
                match self.waiting.poll_next_unpin(cx) {
                    Poll::Ready(Some(done)) => self.complete(cx, done),
                    Poll::Ready(None) | Poll::Pending => break,
                }
            }
            if self.over {
                return Poll::Ready(());
            }
            self.shared.awake.store(false, Ordering::SeqCst);
            let (idle, stage) = {
                let state = self.shared.state.lock();
                (state.queue.is_empty(), state.stage)
            };
            if stage == Stage::Closed && !self.quitting {
                self.quit(cx);
                continue;
            }
            if !idle && self.link.up {
                continue;
            }
            if !idle && !self.fast_tick {
                self.fast_tick = true;
                let soon =
                    (self.settings.command_timeout / 10).clamp(Duration::from_millis(5), Duration::from_millis(50));
                self.waiting.push(call::later(soon, Done::Tick { idle: false }));
                continue;
            }
            return Poll::Pending;
        }
        // There is more, but others are to run too.
        self.shared.awake.store(true, Ordering::Release);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn quit(&mut self, cx: &mut Context<'_>) {
        self.quitting = true;
        self.hand(cx, call::quit(&self.client, QUIT));
    }
}

impl<T: Send + 'static> Future for Driver<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().run(cx)
    }
}

impl<T: Send + 'static> Unpin for Driver<T> {}

impl<T: Send + 'static> Drop for Driver<T> {
    /// The end: asked for, or with the runtime.
    fn drop(&mut self) {
        self.shared.end();
    }
}

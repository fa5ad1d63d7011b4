//! How the state reaches the world: lanes, subscriber, keeper, settings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::Tag;
use super::keeper::News;
use crate::clock::Moment;
use crate::config::Config;
use crate::error::ShutdownError;
use crate::lease::Lease;
use crate::names::LockName;
use crate::stats::Counters;
use crate::wire::{Endpoint, Lane, LaneSettings, Op, OpToken, Refusal, Subscriber, ThreadId};

pub(crate) struct Io {
    pub(crate) config: Config,
    pub(crate) client_id: Arc<str>,
    pub(crate) stats: Counters,
    pub(super) watchdog_lease: Lease,
    /// On the runtime that connected; the way of every operation while that runtime lives.
    main: OnceLock<Lane<Tag>>,
    /// On the keeper's thread.
    own: OnceLock<Lane<Tag>>,
    subscriber: OnceLock<Subscriber>,
    /// The main lane is not used any more.
    main_left: AtomicBool,
    next_thread: AtomicU64,
    keeper_wake: Notify,
    news: Mutex<Vec<News>>,
    keeper_gone: AtomicBool,
    /// Until when a drop waits for its release because the caller's runtime has just ended, as it does before a program
    /// does.
    drain_until: OnceLock<std::time::Instant>,
    ending: AtomicBool,
    pub(super) drained: Condvar,
    pub(super) drained_async: Notify,
    pub(super) shutting_down: tokio::sync::Mutex<()>,
    pub(super) shut_down: OnceLock<Result<(), ShutdownError>>,
    warned_deaf: AtomicBool,
    #[cfg(test)]
    pub(super) pushed: Mutex<std::collections::VecDeque<(Op, Tag)>>,
}

impl Io {
    pub(super) fn new(config: Config) -> Self {
        Io {
            watchdog_lease: config.watchdog_lease(),
            config,
            client_id: uuid::Uuid::new_v4().to_string().into(),
            stats: Counters::default(),
            main: OnceLock::new(),
            own: OnceLock::new(),
            subscriber: OnceLock::new(),
            main_left: AtomicBool::new(false),
            next_thread: AtomicU64::new(1),
            keeper_wake: Notify::new(),
            news: Mutex::new(Vec::new()),
            keeper_gone: AtomicBool::new(false),
            drain_until: OnceLock::new(),
            ending: AtomicBool::new(false),
            drained: Condvar::new(),
            drained_async: Notify::new(),
            shutting_down: tokio::sync::Mutex::new(()),
            shut_down: OnceLock::new(),
            warned_deaf: AtomicBool::new(false),
            #[cfg(test)]
            pushed: Mutex::default(),
        }
    }

    pub(super) fn next_thread(&self) -> ThreadId {
        ThreadId(self.next_thread.fetch_add(1, Ordering::Relaxed))
    }

    // Lanes.

    fn live_main(&self) -> Option<&Lane<Tag>> {
        let main = self.main.get()?;
        (!self.main_left.load(Ordering::Acquire) && !main.is_dead()).then_some(main)
    }

    /// The caller's runtime while it lives, else the keeper's.
    pub(super) fn push(&self, op: Op, tag: Tag) -> Option<OpToken> {
        self.push_to(self.live_main().or_else(|| self.own.get()), op, tag)
    }

    pub(super) fn push_own(&self, op: Op, tag: Tag) {
        self.push_to(self.own.get(), op, tag);
    }

    #[cfg(not(test))]
    fn push_to(&self, lane: Option<&Lane<Tag>>, op: Op, tag: Tag) -> Option<OpToken> {
        Some(lane?.push(op, tag))
    }

    /// Unit tests have no lanes: they look at what was pushed.
    #[cfg(test)]
    fn push_to(&self, _lane: Option<&Lane<Tag>>, op: Op, tag: Tag) -> Option<OpToken> {
        self.pushed.lock().push_back((op, tag));
        None
    }

    /// A count operation: after a failure the keeper's way.
    pub(super) fn push_counted(&self, op: Op, tag: Tag, failures: u32) {
        if failures == 0 {
            self.push(op, tag);
        } else {
            self.push_own(op, tag);
        }
    }

    /// Takes an operation back that was not sent yet.
    pub(super) fn take_back(&self, token: Option<OpToken>) -> bool {
        match (self.live_main().or_else(|| self.own.get()), token) {
            (Some(lane), Some(token)) => lane.take_back(token).is_some(),
            _ => false,
        }
    }

    pub(super) fn main_epoch(&self) -> Option<u64> {
        self.live_main().map(Lane::epoch)
    }

    pub(super) fn main_connection(&self, epoch: u64) -> Option<i64> {
        self.live_main().and_then(|main| main.connection_id(epoch))
    }

    pub(super) fn set_main(&self, lane: Lane<Tag>) {
        let _ = self.main.set(lane);
    }

    pub(super) fn set_own(&self, lane: Lane<Tag>, subscriber: Subscriber) {
        let _ = self.own.set(lane);
        let _ = self.subscriber.set(subscriber);
    }

    /// What is left on the caller's runtime when that ends goes the keeper's way.
    pub(super) fn join_lanes(&self) {
        if let (Some(main), Some(own)) = (self.main.get(), self.own.get()) {
            main.set_fallback(own.clone());
        }
    }

    /// From here on everything goes the keeper's way.
    pub(super) fn leave_main(&self) {
        self.main_left.store(true, Ordering::Release);
        if let (Some(main), Some(own)) = (self.main.get(), self.own.get()) {
            main.move_queued_to(own);
        }
    }

    /// Looks after a runtime that is not driven: what waits there too long is sent from here, what was sent is given up.
    pub(super) fn check_main(&self) {
        let (Some(main), Some(own)) = (self.main.get(), self.own.get()) else { return };
        if main.is_stalled(super::keeper::TICK) {
            main.move_queued_to(own);
        }
        main.overdue(self.config.command_timeout + super::keeper::TICK);
    }

    pub(super) fn want(&self, name: &Arc<LockName>) {
        if let Some(subscriber) = self.subscriber.get() {
            subscriber.want(name.clone());
        }
    }

    pub(super) fn unwant(&self, name: &Arc<LockName>) {
        if let Some(subscriber) = self.subscriber.get() {
            subscriber.drop_want(name);
        }
    }

    // The keeper.

    pub(super) fn wake_keeper(&self) {
        self.keeper_wake.notify_one();
    }

    pub(super) fn call_keeper(&self, news: News) {
        self.news.lock().push(news);
        self.wake_keeper();
    }

    pub(super) fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut *self.news.lock())
    }

    pub(super) async fn keeper_called(&self) {
        self.keeper_wake.notified().await;
    }

    /// The caller's runtime has ended: from here on, for a moment, drops wait for their releases.
    pub(super) fn main_ended(&self) {
        let _ = self.drain_until.set(std::time::Instant::now() + self.config.drain_timeout);
    }

    /// Until when a drop waits now, if it does.
    pub(super) fn drain_until(&self) -> Option<std::time::Instant> {
        self.drain_until.get().copied().filter(|until| *until > std::time::Instant::now())
    }

    pub(super) fn keeper_lives(&self) -> bool {
        !self.keeper_gone.load(Ordering::Acquire)
    }

    pub(super) fn keeper_ends(&self) {
        self.keeper_gone.store(true, Ordering::Release);
        self.drained.notify_all();
    }

    /// Everything is over: the keeper hangs up and ends.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.wake_keeper();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub(super) fn close_main(&self) {
        if let Some(main) = self.main.get() {
            main.close();
        }
    }

    pub(super) async fn hang_up(&self) {
        self.close_main();
        if let Some(subscriber) = self.subscriber.get() {
            subscriber.close().await;
        }
        if let Some(own) = self.own.get() {
            own.close();
            own.closed().await;
        }
    }

    // Settings.

    pub(super) fn endpoint(&self, role: &str) -> Endpoint {
        let label = self.config.label.as_ref().map(|label| format!("{label}:{role}"));
        Endpoint {
            url: self.config.url.clone(),
            database: self.config.database,
            label,
            connect_timeout: self.config.connect_timeout,
            wait_for_server: self.config.wait_for_server,
        }
    }

    pub(super) fn main_settings(&self) -> LaneSettings {
        self.settings(self.config.command_timeout, 3)
    }

    pub(super) fn own_settings(&self) -> LaneSettings {
        self.settings(self.config.watchdog_command_timeout(), 1)
    }

    fn settings(&self, command_timeout: Duration, timeouts_before_reconnect: u32) -> LaneSettings {
        LaneSettings { client_id: self.client_id.clone(), command_timeout, timeouts_before_reconnect }
    }

    /// When a renewal is due: a third of the lease from `from`, rounded down to a common grid so that holds taken about the
    /// same time are renewed together.
    pub(super) fn renewal_due(&self, from: Moment, lease: Lease) -> Moment {
        let period = lease.period();
        let grid = (period / 10).max(Duration::from_millis(1)).as_nanos() as u64;
        let due = from.after(period).to_bits();
        Moment::from_bits(due - due % grid)
    }

    /// How long to leave it before try `n + 1`.
    pub(super) fn backoff(&self, n: u32) -> Duration {
        Duration::from_millis(50 << n.saturating_sub(1).min(4)).min(self.config.watchdog_timeout / 12)
    }

    pub(super) fn warn_deaf(&self, name: &LockName) {
        if !self.warned_deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!(lock = %name, channel = name.channel(),
                "the server forbids publishing: locks are released, but waiters are not woken");
        }
    }

    pub(super) fn warn_refused(&self, name: &LockName, reason: &Refusal) {
        if !self.warned_deaf.swap(true, Ordering::Relaxed) {
            tracing::warn!(lock = %name, channel = name.channel(), reason = %reason.message,
                "the server forbids subscribing: waiters poll instead");
        }
    }
}

//! How the state reaches the world: lanes, subscriber, keeper, settings. Also where failures get their names.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::Tag;
use super::keeper::News;
use super::state::Hold;
use crate::clock::Moment;
use crate::config::Config;
use crate::error::{Error, LockLost, LostReason, Refused, ShutdownError, Source};
use crate::lease::Lease;
use crate::names::LockName;
use crate::stats::Counters;
use crate::wire::{
    Endpoint, Failure, Lane, LaneSettings, Op, OpToken, Refusal, RefusalKind, Reply, Subscriber, ThreadId, Trouble,
};

pub(crate) struct Io {
    pub(crate) config: Config,
    pub(crate) client_id: String,
    pub(crate) stats: Counters,
    pub(super) watchdog_lease: Lease,
    /// On the runtime that connected; the way of every operation while that runtime lives.
    main: OnceLock<Lane<Tag>>,
    /// On the keeper's thread.
    own: OnceLock<Lane<Tag>>,
    subscriber: OnceLock<Subscriber>,
    /// The main lane is not used any more.
    main_left: AtomicBool,
    /// Tokens of attempts, so that a withdrawn one can be taken back unsent.
    attempts: Mutex<std::collections::HashMap<ThreadId, OpToken>>,
    next_thread: AtomicU64,
    keeper_wake: Notify,
    news: Mutex<Vec<News>>,
    keeper_gone: AtomicBool,
    ending: AtomicBool,
    pub(super) drained: Condvar,
    pub(super) drained_async: Notify,
    pub(super) shutting_down: tokio::sync::Mutex<()>,
    pub(super) shut_down: OnceLock<Result<(), ShutdownError>>,
    warned_deaf: AtomicBool,
}

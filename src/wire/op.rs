//! What can be asked of the server, and what can come back. An operation is a value; how it travels is `lane`'s business.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::Source;
use crate::lease::Lease;
use crate::names::LockName;

/// The decimal behind the colon of a holder field. Drawn fresh for each outermost hold and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u64);

/// One operation, typed.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// `lua/acquire.lua`. `count` 1 takes a free lock; more than 1 needs the holder's own field.
    Acquire { name: Arc<LockName>, thread: ThreadId, count: u32, lease: Lease },
    /// `lua/release.lua`. `remaining` 0 is the final release.
    Release { name: Arc<LockName>, thread: ThreadId, remaining: u32 },
    /// `lua/renew.lua`: raises the TTL of each key to `lease` if its holder is still there.
    Renew { holds: Vec<(Arc<LockName>, ThreadId)>, lease: Lease },
    /// `lua/force_release.lua`.
    ForceRelease { name: Arc<LockName> },
    /// EXISTS.
    Exists { name: Arc<LockName> },
    /// PTTL.
    TimeToLive { name: Arc<LockName> },
    /// HGET of one holder field.
    HoldCount { name: Arc<LockName>, thread: ThreadId },
    /// `lua/inspect.lua`, and PUBSUB NUMSUB beside it.
    Inspect { name: Arc<LockName> },
    /// CLIENT KILL ID: ends an old connection of ours, so that nothing of it can still be executed.
    KillConnection { id: i64 },
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Acquire: it is ours now (`count` holds of it).
    Acquired,
    /// Acquire: somebody else holds it. `None`: its key has no TTL.
    Held { ttl: Option<Duration> },
    /// Acquire with `count` > 1: the field is not there.
    Gone,
    /// Release: `remaining` holds are left.
    Kept,
    /// Release or forced release: the key is gone. How many subscribers heard the message; `None`: the server forbade us
    /// to publish it.
    Released { receivers: Option<u64> },
    /// Release: the holder's field is not there. Whose is, if the key exists.
    NotHolder { by: Option<Box<str>> },
    /// Forced release: there was no key.
    Absent,
    /// Renew: one for each hold, in order.
    Renewed(Vec<Renewal>),
    /// Exists.
    Exists(bool),
    /// PTTL.
    TimeToLive(TimeToLive),
    /// HGET: 0 when the field is not there.
    HoldCount(u64),
    /// Inspect.
    Inspected { holders: Vec<(Box<str>, u64)>, ttl: TimeToLive, subscribers: Option<u64> },
    /// Kill: it is gone, now or before.
    Killed,
}

/// What became of one hold of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Its TTL is at least the lease now.
    Renewed,
    /// The holder's field is not there.
    NotHeld,
    /// This key alone failed (another type, say).
    Failed(Refusal),
}

/// PTTL in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeToLive {
    /// There is no key.
    Absent,
    /// The key has no TTL.
    Endless,
    /// It ends after this.
    Left(Duration),
}

/// An error reply, told apart as far as a caller can decide on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: RefusalKind,
    /// The server's own words.
    pub(crate) message: Box<str>,
}

/// Kinds of error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    WrongType,
    /// NOPERM, or a script's word that the user may not run a command.
    Permission,
    /// NOAUTH, WRONGPASS.
    Authentication,
    OutOfMemory,
    Misconf,
    ReadOnly,
    NoReplicas,
    Loading,
    Busy,
    /// CLUSTERDOWN, MASTERDOWN, TRYAGAIN.
    Unavailable,
    Other,
}

impl RefusalKind {
    /// Whether a wait goes on: the server may well take it a moment later.
    pub(crate) fn is_passing(self) -> bool {
        use RefusalKind::*;
        matches!(self, ReadOnly | NoReplicas | Loading | Busy | Unavailable)
    }
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It never left: certainly not executed.
    NotSent(Trouble),
    /// It left, and what became of it is not known.
    Unknown(Trouble),
    /// The server answered with an error: certainly without effect.
    Refused(Refusal),
}

/// What went wrong on the way.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// No answer within the command timeout.
    Timeout,
    /// The connection is down or broke.
    Connection(Source),
    /// The client is closed.
    Closed,
}

/// The outcome of one operation, as the lane tells it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) result: Result<Reply, Failure>,
    /// When it was handed to the connection (the moment of the answer for one that never was).
    pub(crate) handed: Moment,
    /// The number of the connection at hand-over; never higher than the one that it was written to.
    pub(crate) first_epoch: u64,
    /// The number of the connection when the answer came.
    pub(crate) last_epoch: u64,
}

/// What a lane tells whom. Called on the lane's task, or on the thread that ended the operation; never blocks.
pub(crate) trait Listener<T>: Send + Sync + 'static {
    /// Once for each operation pushed, unless it was taken back while still queued.
    fn answered(&self, tag: T, answer: Answer);
    /// The lane has a connection again.
    fn connected(&self);
    /// The lane's runtime has ended under it; everything else has been told. May block for a moment.
    fn ended(&self) {}
}

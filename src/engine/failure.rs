//! What failures mean: whether a wait goes on, and what the caller is told.

use std::sync::Arc;

use super::Io;
use super::state::Hold;
use crate::clock::Moment;
use crate::error::{Error, LockLost, LostReason, Refused, Source};
use crate::names::LockName;
use crate::wire::{Failure, Refusal, RefusalKind, Reply, Trouble};

impl Io {
    pub(super) fn is_passing(&self, failure: &Failure) -> bool {
        match failure {
            Failure::NotSent(trouble) | Failure::Unknown(trouble) => !matches!(trouble, Trouble::Closed),
            Failure::Refused(refusal) => refusal.kind.is_passing(),
        }
    }

    pub(super) fn error(&self, name: &LockName, failure: &Failure) -> Error {
        let lock: Box<str> = name.given().into();
        match failure {
            Failure::NotSent(trouble) | Failure::Unknown(trouble) => match trouble {
                Trouble::Timeout => Error::Timeout { lock, waited: self.config.command_timeout },
                Trouble::Connection(source) => Error::Connection { lock, source: source.clone() },
                Trouble::Closed => Error::Closed { lock },
            },
            Failure::Refused(refusal) => refused(lock, refusal),
        }
    }

    /// The server answered something that is no answer to what was asked.
    pub(super) fn nonsense(&self, name: &LockName, reply: &Reply) -> Error {
        Error::Refused {
            lock: name.given().into(),
            kind: Refused::Other,
            message: format!("an unexpected reply: {reply:?}").into(),
        }
    }

    pub(super) fn unconfirmed(&self, hold: &Hold, error: &Error) -> Error {
        Error::Unconfirmed {
            lock: hold.name.given().into(),
            owner: hold.owner,
            goes_on: Moment::now().until(hold.shared.deadline()),
            source: Some(Arc::new(error.clone()) as Source),
        }
    }

    pub(super) fn lost(&self, hold: &Hold, reason: LostReason) -> LockLost {
        LockLost { lock: hold.name.given().into(), owner: hold.owner, reason }
    }
}

fn refused(lock: Box<str>, refusal: &Refusal) -> Error {
    let kind = match refusal.kind {
        RefusalKind::WrongType => return Error::WrongType { lock },
        RefusalKind::Permission => return Error::Permission { lock, message: refusal.message.clone() },
        RefusalKind::Authentication => Refused::Authentication,
        RefusalKind::OutOfMemory => Refused::OutOfMemory,
        RefusalKind::Misconf => Refused::Misconf,
        RefusalKind::ReadOnly => Refused::ReadOnly,
        RefusalKind::NoReplicas => Refused::NoReplicas,
        RefusalKind::Loading => Refused::Loading,
        RefusalKind::Busy => Refused::Busy,
        RefusalKind::Unavailable => Refused::Unavailable,
        RefusalKind::Other => Refused::Other,
    };
    Error::Refused { lock, kind, message: refusal.message.clone() }
}
